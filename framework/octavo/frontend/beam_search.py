"""Beam search over any next-token distribution; it knows tokens only, no engine and no text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from octavo.outputs import BeamSequence
from octavo.params import BeamSearchParams

Candidates = list[tuple[int, float]]
"""Next tokens and their logprobs, likeliest first; none: the text is complete as it is.

None in their place is a dead end: nothing may follow, and the text is not complete.
"""
Continued = tuple[list[int], list[int]]
"""A prompt, and the tokens of a beam behind it."""


def num_candidates(params: BeamSearchParams, num_eos_tokens: int) -> int:
    """Candidates that each step needs, so that ``beam_width`` beams live on if every EOS ranks."""
    return params.beam_width * max(2, 1 + num_eos_tokens)


class BeamSearch:
    """The search of one prompt, a step at a time; ties and ends are as in Transformers'.

    ``live`` are the beams to extend next, best first; none when the search has ended.
    """

    def __init__(
        self, params: BeamSearchParams, *, max_tokens: int, eos_token_ids: Sequence[int]
    ) -> None:
        self.live = [BeamSequence(token_ids=[], cumulative_logprob=0.0)]
        self._params = params
        self._max_tokens = max_tokens
        self._eos = frozenset(() if params.ignore_eos else eos_token_ids)
        self._ended: list[BeamSequence] = []

    @property
    def best(self) -> list[BeamSequence]:
        """The ended beams, best first; at most ``beam_width``."""
        return sorted(self._ended, key=self._score, reverse=True)[: self._params.beam_width]

    def advance(self, candidates: Sequence[Candidates | None]) -> None:
        """Extend every live beam by its candidates, and keep the best; drop those at a dead end."""
        width = self._params.beam_width
        extended = []
        for beam, options in zip(self.live, candidates, strict=True):
            if options is None:
                continue
            if not options:
                beam.finish_reason = "stop"
                self._ended.append(beam)
            extended += [
                (beam, token, beam.cumulative_logprob + logprob) for token, logprob in options
            ]
        extended.sort(key=lambda entry: entry[2], reverse=True)
        self.live = []
        for rank, (beam, token, total) in enumerate(extended):
            if len(self.live) == width:
                break
            longer = BeamSequence(token_ids=[*beam.token_ids, token], cumulative_logprob=total)
            if token in self._eos:
                longer.finish_reason = "stop"
            elif len(longer.token_ids) == self._max_tokens:
                longer.finish_reason = "length"
            else:
                self.live.append(longer)
                continue
            # An end counts only among the best; below them it was merely passed on the way.
            if rank < width:
                self._ended.append(longer)
        self._ended = self.best
        if self._cannot_improve():
            self.live = []

    def _cannot_improve(self) -> bool:
        if not self.live or len(self._ended) < self._params.beam_width:
            return False
        return self._score(self.live[0]) <= self._score(self._ended[-1])

    def _score(self, beam: BeamSequence) -> float:
        length = max(1, len(beam.token_ids))
        return float(beam.cumulative_logprob / length**self._params.length_penalty)


def run_beam_searches(
    prompts: Sequence[list[int]],
    searches: Sequence[BeamSearch],
    expand: Callable[[list[Continued]], Sequence[Candidates | None]],
) -> None:
    """Advance all searches together until each has ended; ``expand`` scores many sequences."""
    pairs = list(zip(prompts, searches, strict=True))
    while pairs := [(prompt, search) for prompt, search in pairs if search.live]:
        candidates = iter(
            expand([(prompt, beam.token_ids) for prompt, search in pairs for beam in search.live])
        )
        for _, search in pairs:
            search.advance([next(candidates) for _ in search.live])
