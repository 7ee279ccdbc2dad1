"""The entries of config.json that sizes are made of, checked before a model is built by them.

Names are those of all architectures, so that none has to do it; an entry that stands in no rule
here is its architecture's own matter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from octavo.config.checks import MAX_COUNT
from octavo.errors import ModelError
from octavo.wording import shown


def _is_size(value: object) -> bool:
    return type(value) is int and 0 < value <= MAX_COUNT


def _is_optional_size(value: object) -> bool:
    return value is None or _is_size(value)


def _is_count(value: object) -> bool:
    return value is None or (type(value) is int and 0 <= value <= MAX_COUNT)


def _is_epsilon(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value < math.inf  # type: ignore[operator]


def _is_factor(value: object) -> bool:
    return value is None or (_is_epsilon(value) and value != 0)


def _is_flag(value: object) -> bool:
    return value is None or isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class Rule:
    """What entries of these names must be."""

    wanted: str
    accepts: Callable[[object], bool]
    names: frozenset[str]


EPSILONS: Final = frozenset({"rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon"})

RULES: Final = (
    Rule("a positive integer below 2**31", _is_size, frozenset({
        "hidden_size", "n_embd", "num_hidden_layers", "n_layer", "num_attention_heads", "n_head",
    })),
    Rule("a positive integer below 2**31, or null", _is_optional_size, frozenset({
        "head_dim", "num_key_value_heads", "intermediate_size", "moe_intermediate_size", "n_inner",
        "ffn_dim", "v_head_dim", "word_embed_proj_dim", "sliding_window",
    })),
    Rule("an integer from 0, or null", _is_count, frozenset({
        "num_experts", "num_local_experts", "num_experts_per_tok", "n_routed_experts", "n_group",
        "n_shared_experts", "topk_group", "first_k_dense_replace", "q_lora_rank", "kv_lora_rank",
        "qk_nope_head_dim", "qk_rope_head_dim", "max_window_layers", "num_nextn_predict_layers",
    })),
    Rule("a number from 0", _is_epsilon, EPSILONS),
    Rule("a number above 0, or null", _is_factor, frozenset({
        "rope_theta", "rope_local_base_freq", "query_pre_attn_scalar", "attn_logit_softcapping",
        "final_logit_softcapping",
    })),
    Rule("true or false", _is_flag, frozenset({
        "tie_word_embeddings", "attention_bias", "mlp_bias", "use_sliding_window",
    })),
)  # fmt: skip


def check_entries(path: Path, text: Mapping[str, Any]) -> None:
    """Refuse, by name and value, what no model can be made of.

    ``text`` is the config of the language model. A list holds the value of each layer.
    """
    for name, value in _with_rope_settings(text):
        rule = next((rule for rule in RULES if name in rule.names), None)
        if rule is None or _is_unused(name, value, text):
            continue
        values = value if isinstance(value, list) else [value]
        if not values or not all(map(rule.accepts, values)):
            raise ModelError(f"{path}: {name}={shown(value)} must be {rule.wanted}")


def _is_unused(name: str, value: object, text: Mapping[str, Any]) -> bool:
    """Whether the config itself says so: Transformers saves ``"sliding_window": 0`` for none."""
    if name == "sliding_window":
        return text.get("use_sliding_window") is False
    has_epsilon = any(text.get(other) is not None for other in EPSILONS)
    return name in EPSILONS and value is None and has_epsilon


def _with_rope_settings(entries: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The entries, and those of rope settings, which may be given by kind of layer."""
    for name, value in entries.items():
        yield name, value
        if name in ("rope_parameters", "rope_scaling") and isinstance(value, Mapping):
            kinds = [each for each in value.values() if isinstance(each, Mapping)]
            for each in kinds or [value]:
                yield from each.items()


class Entries(dict[str, Any]):
    """A config.json of which ``[name]`` asks for an entry that must be there and not be null."""

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        self._path = path

    def __getitem__(self, name: str) -> Any:
        """A ModelError names what is not there."""
        value = self.get(name)
        if value is None:
            how = "has null for" if name in self else "lacks"
            raise ModelError(
                f"{self._path} {how} {name!r}, which the architecture needs; hf_overrides can "
                "give it"
            )
        return value
