"""The fields with which every text route chooses tokens: OpenAI's, and vLLM's where it has none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import msgspec

from octavo.params import SamplingParams
from octavo.server.protocol.fields import Refused

_STRUCTURED = "structured output is not part of this version"
NOT_AVAILABLE: Final = {
    **{
        name: Refused(_STRUCTURED)
        for name in (
            "guided_json",
            "guided_regex",
            "guided_choice",
            "guided_grammar",
            "guided_decoding_backend",
            "guided_whitespace_pattern",
            "structured_outputs",
            "structural_tag",
        )
    },
    "response_format": Refused(_STRUCTURED, (None, {"type": "text"})),
    "use_beam_search": Refused("use LLM.beam_search", (None, False)),
    "length_penalty": Refused("it belongs to beam search", (None, 1, 1.0)),
    "early_stopping": Refused("it belongs to beam search", (None, False)),
    "logits_processors": Refused("start the server with --logits-processors"),
    "kv_transfer_params": Refused("prefill and decode run in one engine"),
    "vllm_xargs": Refused("no plugin here reads it"),
    "repetition_detection": Refused("set max_tokens or repetition_penalty"),
    "thinking_token_budget": Refused("set max_tokens"),
}
"""Refused by every route that samples."""
NO_EFFECT: Final = frozenset(
    (
        "user",
        "metadata",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "store",
    )
)
"""They cannot change the tokens."""


class SamplingFields(msgspec.Struct, kw_only=True):
    """What a body may say of sampling; what it leaves out is the model's default."""

    temperature: float | msgspec.UnsetType = msgspec.UNSET
    top_p: float | msgspec.UnsetType = msgspec.UNSET
    top_k: int | msgspec.UnsetType = msgspec.UNSET
    min_p: float | msgspec.UnsetType = msgspec.UNSET
    n: int | msgspec.UnsetType = msgspec.UNSET
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
    prompt_logprobs: int | msgspec.UnsetType = msgspec.UNSET

    def params(self, default: SamplingParams, **more: Any) -> SamplingParams:
        """The model's recommendation, changed by what the body gives; ``more`` wins."""
        given = {
            name: value
            for name in SamplingFields.__struct_fields__
            if (value := getattr(self, name)) is not msgspec.UNSET
        }
        return replace(default, **{**given, **more})
