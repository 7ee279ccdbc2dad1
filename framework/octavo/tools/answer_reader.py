"""Takes the answers of one request apart: reasoning, content and calls, as their text comes."""

from __future__ import annotations

import secrets
import string
from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from octavo.errors import RequestFailedError
from octavo.outputs import CompletionOutput, RequestOutput
from octavo.tools.answer_format import AnswerPlan
from octavo.tools.message import MessageStream
from octavo_registry import Delta, ParsedMessage
from octavo_registry.faults import one_line

_ID_CHARACTERS: Final = string.ascii_letters + string.digits
_ID_LENGTH: Final = 9
"""Letters and digits, nine of them: templates of Mistral's refuse other ids."""


class AnswerReader:
    """Adds to each output what its text says: ``deltas`` to pieces, ``message`` to whole ones."""

    def __init__(self, plan: AnswerPlan, *, in_pieces: bool) -> None:
        """``in_pieces``: outputs hold what is new only."""
        self._plan = plan
        self._in_pieces = in_pieces
        self._answers: dict[int, _Answer] = {}

    def take(self, output: RequestOutput) -> None:
        """Read an output; raises RequestFailedError where a parser fails on it."""
        for each in output.outputs:
            answer = self._answers.get(each.index)
            if answer is None:
                answer = self._answers[each.index] = _Answer(self._plan)
            try:
                if self._in_pieces:
                    each.deltas = answer.add(each.text, each.finished)
                else:
                    each.message = answer.whole(each)
                    each.deltas = answer.deltas
            except Exception as error:  # a plugin's, on what a model wrote
                raise RequestFailedError(
                    f"the parser of the model's answers fails on this one: {one_line(error)}"
                ) from error


class _Answer:
    def __init__(self, plan: AnswerPlan) -> None:
        self._stream = plan.new_stream() if plan.new_stream else MessageStream()
        self._parallel = plan.parallel
        self._num_read = 0
        self._has_ended = False
        self.deltas: list[Delta] = []
        """All so far, where outputs are whole."""

    def add(self, piece: str, ended: bool) -> list[Delta]:
        deltas = self._stream.feed(piece)
        if ended and not self._has_ended:
            self._has_ended = True
            deltas += self._stream.finish()
        return [*self._named(deltas)]

    def whole(self, output: CompletionOutput) -> ParsedMessage:
        piece = output.text[self._num_read :]
        self._num_read = len(output.text)
        self.deltas += self.add(piece, output.finished)
        return ParsedMessage.joined(self.deltas)

    def _named(self, deltas: Iterable[Delta]) -> Iterable[Delta]:
        for delta in deltas:
            if delta.tool_call_index and not self._parallel:
                continue  # a call too many, of a model that nothing held back
            yield replace(delta, id=_new_id()) if delta.name and not delta.id else delta


def _new_id() -> str:
    return "".join(secrets.choice(_ID_CHARACTERS) for _ in range(_ID_LENGTH))
