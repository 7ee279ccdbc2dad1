"""The fields that the text routes share: OpenAI's, and vLLM's where it has none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Final, Literal

import msgspec

from octavo.params import SamplingParams
from octavo.server.http.errors import HttpError
from octavo.server.protocol.fields import Noted, Refused
from octavo.server.protocol.guided import GuidedFields
from octavo.wording import shown

MAX_LOGPROBS: Final = 20
"""How many of a token OpenAI gives at most, where the operator has not chosen."""
NOT_AVAILABLE: Final = {
    "guided_whitespace_pattern": Refused("put the blanks into guided_regex or guided_grammar"),
    "early_stopping": Refused("a beam search ends when no beam can become better", (False,)),
    "logits_processors": Refused("start the server with --logits-processors", ([],)),
    "kv_transfer_params": Refused("prefill and decode run in one engine"),
    "ec_transfer_params": Refused("encoders run in the same engine"),
    "return_token_offsets": Refused("/tokenize has return_token_strs", (False,)),
    "logprob_token_ids": Refused("logprobs gives those of the likeliest tokens"),
    "watermarking": Refused("no answer has a mark", (False,)),
    "routed_experts_prompt_start": Refused("which experts were used is not told", (0,)),
    "repetition_detection": Refused("set max_tokens or repetition_penalty"),
    "thinking_token_budget": Refused("set max_tokens"),
}
"""Refused by every route that samples."""
NO_BEAMS: Final = {
    "use_beam_search": Refused("/v1/chat/completions has it", (False,)),
    "length_penalty": Refused("it belongs to beam search", (1, 1.0)),
}
"""Refused by those that have one answer."""
NOTED: Final[Mapping[str, Noted]] = {
    "user": Noted(str, ("",)),
    "metadata": Noted(dict[str, Any], ({},)),
    "service_tier": Noted(str, ("auto", "default")),
    "safety_identifier": Noted(str),
    "prompt_cache_key": Noted(str),
    "prompt_cache_options": Noted(dict[str, Any], ({},)),
    "prompt_cache_retention": Noted(str),
    "store": Noted(bool, (False,)),
    "session_id": Noted(str),
    "return_mm_kwargs": Noted(bool, (False,)),
    "stream_interval": Noted(Annotated[int, msgspec.Meta(ge=1)], (1,)),
    "verbosity": Noted(str, ("medium",)),
}
"""Hints: they cannot make an answer wrong."""


class SamplingFields(GuidedFields, kw_only=True):
    """What a body may say of how one answer is sampled; the rest is the model's default."""

    temperature: float | msgspec.UnsetType = msgspec.UNSET
    top_p: float | msgspec.UnsetType = msgspec.UNSET
    top_k: int | msgspec.UnsetType = msgspec.UNSET
    min_p: float | msgspec.UnsetType = msgspec.UNSET
    seed: int | msgspec.UnsetType = msgspec.UNSET
    stop: str | list[str] | msgspec.UnsetType = msgspec.UNSET
    stop_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    ignore_eos: bool | msgspec.UnsetType = msgspec.UNSET
    min_tokens: int | msgspec.UnsetType = msgspec.UNSET
    presence_penalty: float | msgspec.UnsetType = msgspec.UNSET
    frequency_penalty: float | msgspec.UnsetType = msgspec.UNSET
    repetition_penalty: float | msgspec.UnsetType = msgspec.UNSET
    logit_bias: dict[int, float] | msgspec.UnsetType = msgspec.UNSET
    bad_words: list[str] | msgspec.UnsetType = msgspec.UNSET
    allowed_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    skip_special_tokens: bool | msgspec.UnsetType = msgspec.UNSET
    spaces_between_special_tokens: bool | msgspec.UnsetType = msgspec.UNSET
    include_stop_str_in_output: bool | msgspec.UnsetType = msgspec.UNSET
    truncate_prompt_tokens: int | msgspec.UnsetType = msgspec.UNSET
    truncation_side: Literal["left", "right"] | msgspec.UnsetType = msgspec.UNSET
    vllm_xargs: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET

    def params(self, default: SamplingParams, *, room: int, **more: Any) -> SamplingParams:
        """The model's recommendation, changed by what the body gives; ``more`` wins.

        ``room`` is the context's, for a prompt that is to be cut to what fits.
        """
        given = {
            name: value
            for name in _PARAMETERS
            if (value := getattr(self, name, msgspec.UNSET)) is not msgspec.UNSET
        }
        given |= {"output_kind": "delta" if self.stream else "final", **more}
        given["guided"] = self.guided(given.get("guided"))
        if "vllm_xargs" in given:  # what plugins read, under the name that vLLM's clients give it
            given["extra_args"] = given.pop("vllm_xargs")
        if given.get("truncate_prompt_tokens") == -1:  # vLLM's: as many as the context allows
            num_output = given.get("max_tokens", default.max_tokens) or 1
            given["truncate_prompt_tokens"] = max(1, room - num_output)
        return replace(default, **given)


class SeveralFields(SamplingFields, kw_only=True):
    """What the routes of several answers and of prompts' logprobs know besides."""

    n: int | msgspec.UnsetType = msgspec.UNSET
    prompt_logprobs: int | msgspec.UnsetType = msgspec.UNSET
    use_beam_search: bool = False
    length_penalty: float = 1.0

    def check_beams(self) -> None:
        """Raise for what means something in a beam search alone."""
        if self.length_penalty != 1.0 and not self.use_beam_search:
            raise HttpError(
                400, "length_penalty belongs to use_beam_search", param="length_penalty"
            )


_PARAMETERS: Final = set(SeveralFields.__struct_fields__).difference(
    GuidedFields.__struct_fields__, ("use_beam_search", "length_penalty")
)


def checked_max_tokens(name: str, max_tokens: int, context: int) -> int:
    """Return the count, which the prompt may still cut; an error names it as the route does."""
    if not 1 <= max_tokens <= context:
        raise HttpError(
            400,
            f"{name}={shown(max_tokens)} must be between 1 and the context of {context}",
            param=name,
        )
    return max_tokens


def check_num_logprobs(name: str, num_top: int, most: int) -> None:
    """Raise for more than a server gives."""
    if num_top == -1:
        raise HttpError(400, f"{name}=-1 asks for the whole vocabulary; at most {most}", param=name)
    if not 0 <= num_top <= most:
        raise HttpError(400, f"{name}={shown(num_top)} must be between 0 and {most}", param=name)
