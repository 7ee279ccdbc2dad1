"""One continuation as the client keeps it: its tokens, its text, and what was delivered of it."""

from __future__ import annotations

from octavo.detokenizing.incremental import IncrementalDetokenizer
from octavo.detokenizing.logprobs import LogprobDecoder
from octavo.detokenizing.stop_strings import StopStrings
from octavo.messages import EngineRequest, SequenceEnd, SequenceLogprobs
from octavo.outputs import CompletionOutput, FinishReason, TokenLogprobs
from octavo.params import SamplingParams
from octavo_registry.tokenizer import Tokenizer


class Continuation:
    """Tokens and logprobs are appended from outside; ``read`` makes text of those not yet read."""

    def __init__(
        self,
        index: int,
        request: EngineRequest,
        params: SamplingParams,
        tokenizer: Tokenizer | None,
        logprob_decoder: LogprobDecoder,
    ) -> None:
        self.index = index
        self.sequence_id = request.sequences[index]
        self.request_id = request.request_id
        self.watched = params.output_kind != "final" or bool(params.stop_strings)
        """Whether each step is looked at; the others' text is made once, at their end."""
        self.token_ids: list[int] = []
        self.raw_logprobs: list[SequenceLogprobs] = []
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self._prompt_ids = request.prompt_token_ids
        self._params = params
        self._tokenizer = tokenizer if params.detokenize else None
        self._detokenizer: IncrementalDetokenizer | None = None
        self._stops = StopStrings(
            params.stop_strings, include_in_output=params.include_stop_str_in_output
        )
        self._num_read = 0
        self._text = ""
        self._logprob_decoder = logprob_decoder
        self._logprobs: list[TokenLogprobs] | None = None if params.logprobs is None else []
        self._cumulative_logprob = 0.0
        self._has_starts = self._logprobs is not None and self._tokenizer is not None
        self._starts: list[int] = []
        """Where in the text tokens begin."""
        self._num_chars = 0
        self._num_delivered_tokens = 0
        self._delivered_end = False

    @property
    def has_news(self) -> bool:
        """Whether tokens or the end came since the last output."""
        if self.finish_reason is not None:
            return not self._delivered_end
        return len(self.token_ids) > self._num_delivered_tokens

    def read(self) -> None:
        """Bring the text up to the last token; a stop string in it ends the continuation."""
        self._read_text(len(self.token_ids))
        self._read_logprobs()

    def finish(self, end: SequenceEnd) -> None:
        """End it as the engine says, unless text that is still to be read holds a stop string."""
        stop_token = end.reason == "stop" and not end.is_text
        hidden = stop_token and not self._params.include_stop_str_in_output
        self._read_text(len(self.token_ids) - hidden)
        if self._detokenizer is not None and self.finish_reason is None:
            self._take(self._detokenizer.finish())
        if self.finish_reason is None:
            self._text += self._stops.finish()
            self.finish_reason, self.stop_reason = end.reason, end.stop_token_id
        self._read_logprobs()

    def output(self, *, delta: bool) -> CompletionOutput:
        """All that was read, or with ``delta`` what is new since the last call."""
        first_token = self._num_delivered_tokens if delta else 0
        self._num_delivered_tokens = len(self.token_ids)
        self._delivered_end = self.finish_reason is not None
        text = self._text
        if delta:
            self._text = ""  # to add to what was delivered would copy it at each token
        return CompletionOutput(
            index=self.index,
            text=text,
            token_ids=self.token_ids[first_token:],
            cumulative_logprob=None if self._logprobs is None else self._cumulative_logprob,
            logprobs=None if self._logprobs is None else self._logprobs[first_token:],
            token_starts=self._starts[first_token:] if self._has_starts else None,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
        )

    def _read_text(self, num_tokens: int) -> None:
        if self._tokenizer is None:
            return
        if self._detokenizer is None:
            self._detokenizer = IncrementalDetokenizer(
                self._tokenizer,
                prompt_ids=self._prompt_ids,
                skip_special_tokens=self._params.skip_special_tokens,
                keep_special_tokens=self._params.keep_special_tokens,
                spaces_between_special_tokens=self._params.spaces_between_special_tokens,
            )
        if not self._stops.strings and not self._has_starts:
            self._text += self._detokenizer.push(self.token_ids[self._num_read : num_tokens])
            self._num_read = num_tokens
        while self._num_read < num_tokens and self.finish_reason is None:
            piece = self._detokenizer.push([self.token_ids[self._num_read]])
            self._num_read += 1
            self._starts.append(self._num_chars)
            self._num_chars += len(piece)
            self._take(piece)

    def _take(self, piece: str) -> None:
        if self._num_read <= self._params.min_tokens:  # as for stop tokens, none counts this early
            self._text += piece
            return
        self._text += self._stops.feed(piece)
        if self._stops.matched is not None:
            self.finish_reason, self.stop_reason = "stop", self._stops.matched
            del self.token_ids[self._num_read :]

    def _read_logprobs(self) -> None:
        if self._logprobs is not None:
            for raw in self.raw_logprobs[len(self._logprobs) : len(self.token_ids)]:
                self._cumulative_logprob += raw.logprobs[0]
                self._logprobs.append(self._logprob_decoder.decode(raw))
            # A stop token that is hidden was not read.
            self._starts += [self._num_chars] * (len(self._logprobs) - len(self._starts))
