"""Beam search as requests ask for it: ``use_beam_search`` with ``n`` beams."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from octavo.limits import MAX_LOGPROBS
from octavo.outputs import (
    BeamSearchOutput,
    CompletionOutput,
    RequestMetrics,
    RequestOutput,
)
from octavo.params import BeamSearchParams, SamplingParams
from octavo.server.http.errors import HttpError
from octavo.server.protocol.notes import Notes
from octavo.server.protocol.sampling import SeveralFields

NO_EFFECT: Final = "has no effect with use_beam_search"
MAX_BEAMS: Final = MAX_LOGPROBS // 2
_SAMPLING: Final = ("temperature", "top_p", "top_k", "min_p", "seed")
"""Nothing is sampled, so these have no effect."""
_SHOWN: Final = (
    "skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output",
)  # fmt: skip
"""Nor have these: texts are shown in one way."""
_REFUSED: Final = (
    "stop", "stop_token_ids", "min_tokens", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "logit_bias", "bad_words", "allowed_token_ids", "prompt_logprobs",
    "vllm_xargs", "truncate_prompt_tokens",
)  # fmt: skip
"""These would change which texts are the likeliest, or tell of tokens."""


def beam_params(
    request: SeveralFields, *, max_tokens: int, notes: Notes, others: dict[str, Any]
) -> BeamSearchParams:
    """What a request with ``use_beam_search`` asks for.

    ``others`` are the fields of its route that a search cannot have, by name.
    """
    neutral = SamplingParams()
    for name in _SAMPLING:
        value = getattr(request, name)
        if value is not msgspec.UNSET and (name, value) != ("temperature", 0):
            notes.add(name, NO_EFFECT)
    for name in _SHOWN:
        if getattr(request, name) not in (msgspec.UNSET, getattr(neutral, name)):
            notes.add(name, NO_EFFECT)
    given = {name: getattr(request, name) for name in _REFUSED}
    wrong = {
        name: value
        for name, value in given.items()
        if value is not msgspec.UNSET and value != getattr(neutral, name, None)
    }
    asked = {"stream": request.stream, **others}
    for name in (*wrong, *(name for name, value in asked.items() if value)):
        raise HttpError(400, f"{name} does not go with use_beam_search", param=name)
    width = 1 if request.n is msgspec.UNSET else request.n
    if not 1 <= width <= MAX_BEAMS:
        raise HttpError(400, f"n={width} must be between 1 and {MAX_BEAMS} beams", param="n")
    return BeamSearchParams(
        beam_width=width,
        max_tokens=max_tokens,
        ignore_eos=request.ignore_eos is True,
        length_penalty=request.length_penalty,
        guided=request.guided(None),
    )


def as_output(found: BeamSearchOutput, request_id: str, prompt: str | None) -> RequestOutput:
    """The beams as answers to one request, the likeliest first."""
    answers = [
        CompletionOutput(
            index=index,
            text=beam.text,
            token_ids=beam.token_ids,
            cumulative_logprob=beam.cumulative_logprob,
            finish_reason=beam.finish_reason,
            message=beam.message,
        )
        for index, beam in enumerate(found.sequences)
    ]
    return RequestOutput(
        request_id=request_id,
        prompt=prompt,
        prompt_token_ids=found.prompt_token_ids,
        outputs=answers,
        finished=True,
        metrics=RequestMetrics(0.0),
    )
