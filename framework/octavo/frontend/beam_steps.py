"""The steps of a beam search as requests to an engine, and what their outputs say of the next."""

from __future__ import annotations

import math
from dataclasses import replace

from msgspec import structs

from octavo.errors import DeadEndError, ParameterError, RequestFailedError
from octavo.frontend.beam_search import Candidates
from octavo.inputs import PreparedRequest
from octavo.messages import GuideRequest
from octavo.outputs import RequestOutput


def check_mode(logprobs_mode: str) -> None:
    """Raise where the engine gives no logprobs to add up."""
    if not logprobs_mode.endswith("_logprobs"):
        raise ParameterError(
            f"a beam search needs logprobs, and logprobs_mode={logprobs_mode!r} gives logits",
            param="use_beam_search",
        )


def guided_by(
    guide: GuideRequest | None, prepared: PreparedRequest, num_tokens: int
) -> PreparedRequest:
    """One step of a beam with ``num_tokens`` behind its prompt."""
    if guide is None:
        return prepared
    request = prepared.request
    guided = structs.replace(
        request,
        guide=guide,
        num_guided_tokens=num_tokens,
        sampling=replace(request.sampling, logprobs_of_allowed=True),
    )
    return replace(prepared, request=guided)


def candidates_of(output: RequestOutput) -> Candidates | None:
    """The tokens that may follow; None at a dead end."""
    (completion,) = output.outputs
    if output.error_type == DeadEndError.__name__:
        return None
    if output.error is None and completion.finish_reason == "stop" and not completion.token_ids:
        return []
    if output.error is not None or not completion.logprobs:
        raise RequestFailedError(f"a step of the beam search failed: {output.error}")
    likeliest = completion.logprobs[0].items()
    return [(token, entry.logprob) for token, entry in likeliest if entry.logprob > -math.inf]
