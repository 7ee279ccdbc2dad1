"""Takes the answers of one request apart: reasoning, content and calls, as their text comes."""

from __future__ import annotations

import secrets
import string
from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from octavo.errors import PluginError, RequestFailedError
from octavo.outputs import BeamSequence, CompletionOutput, RequestOutput, TokenLogprobs
from octavo.tools.answer_format import ExpectedAnswer
from octavo.tools.message import MessageStream
from octavo.tools.token_texts import TokenTexts
from octavo_registry import Delta, ParsedMessage
from octavo_registry.faults import one_line

_ID_CHARACTERS: Final = string.ascii_letters + string.digits
_ID_LENGTH: Final = 9
"""Letters and digits, nine of them: templates of Mistral's refuse other ids."""


class AnswerReader:
    """Adds to each output what its text says: ``deltas`` to pieces, ``message`` to whole ones."""

    def __init__(self, expected: ExpectedAnswer, *, in_pieces: bool, foreign: str = "") -> None:
        """``in_pieces``: outputs hold what is new only. ``foreign`` as in ``AnswerFormat``."""
        self.foreign = foreign
        self.was_slow = False
        """A log has told of it."""
        self._expected = expected
        self._in_pieces = in_pieces
        self._answers: dict[int, _Answer] = {}

    def take(self, output: RequestOutput) -> None:
        """Read an output; raises RequestFailedError where a parser fails on it."""
        for each in output.outputs:
            answer = self._answers.get(each.index)
            if answer is None:
                answer = self._answers[each.index] = _Answer(self._expected, self._in_pieces)
            _read(answer, each)

    def take_beams(self, beams: Iterable[BeamSequence]) -> None:
        """Read the texts of a beam search, and set what each says."""
        for index, beam in enumerate(beams):
            whole = CompletionOutput(
                index=index, text=beam.text, token_ids=beam.token_ids, finish_reason="stop"
            )
            _read(_Answer(self._expected, in_pieces=False), whole)
            beam.message = whole.message


def _read(answer: _Answer, output: CompletionOutput) -> None:
    try:
        answer.add(output)
    except PluginError:
        raise
    except Exception as error:  # a plugin's, on what a model wrote
        raise RequestFailedError(
            f"the parser of the model's answers fails on this one: {one_line(error)}"
        ) from error


class _Answer:
    def __init__(self, expected: ExpectedAnswer, in_pieces: bool) -> None:
        self._stream = expected.new_stream() if expected.new_stream else MessageStream()
        self._parallel = expected.parallel
        self._in_pieces = in_pieces
        self._num_chars = 0
        self._num_tokens = 0
        """How many tokens of whole outputs have been read."""
        self._has_ended = False
        self._tokens: TokenTexts | None = None
        """Where logprobs are asked for."""
        self._deltas: list[Delta] = []
        self._delta_logprobs: list[list[TokenLogprobs]] = []

    def add(self, output: CompletionOutput) -> None:
        """Read what is new of an output, and set what it says."""
        if self._in_pieces:
            self._deltas, self._delta_logprobs = [], []
        text = output.text[self._num_chars :]
        if output.token_starts is None or output.logprobs is None:
            self._take(self._stream.feed(text))
        else:
            self._tokens = self._tokens or TokenTexts()
            starts = output.token_starts[self._num_tokens :]
            self._tokens.expect(starts, output.logprobs[self._num_tokens :])
            for piece in self._tokens.pieces(text):
                self._tokens.read(piece)
                self._take(self._stream.feed(piece))
        if output.finished and not self._has_ended:
            self._has_ended = True
            self._take(self._stream.finish())
        output.deltas = self._deltas
        output.delta_logprobs = None if self._tokens is None else self._delta_logprobs
        if not self._in_pieces:
            self._num_chars, self._num_tokens = len(output.text), len(output.token_ids)
            output.message = ParsedMessage.joined(self._deltas)

    def _take(self, deltas: Iterable[Delta]) -> None:
        for delta in deltas:
            if delta.tool_call_index and not self._parallel:
                continue  # a call too many, of a model that nothing held back
            if self._tokens is not None:
                self._delta_logprobs.append(self._tokens.given(delta))
            named = replace(delta, id=_new_id()) if delta.name and not delta.id else delta
            self._deltas.append(named)


def _new_id() -> str:
    return "".join(secrets.choice(_ID_CHARACTERS) for _ in range(_ID_LENGTH))
