"""``quant_method`` "gptq": words of inputs, with scales and zeros for groups of inputs.

Axis suffixes: O outputs, I inputs, G groups of inputs, P parts of a fused product.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor

from octavo.errors import ConfigError, ModelError
from octavo.layers.formats import (
    CodedWeight,
    FormatExperts,
    FormatLinear,
    StoredTensor,
    only_features,
    unpacked,
)
from octavo_plugins.quantizations.settings import (
    Method,
    Settings,
    groups_of,
    is_named,
    method_for,
)
from octavo_registry import Axis, ExpertsSite, Site

WORD_BITS: Final = 32
OVERRIDES: Final = frozenset(("bits", "group_size", "desc_act", "sym"))
IGNORED: Final = (
    "backend", "batch_size", "block_name_to_quantize", "cache_block_outputs", "damp_auto_increment",
    "damp_percent", "dataset", "disable_exllama", "exllama_config", "max_input_length", "meta",
    "model_file_base_name", "model_name_or_path", "model_seqlen", "mse",
    "module_name_preceding_first_block", "pad_token_id", "static_groups", "sym", "tokenizer",
    "true_sequential", "use_cuda_fp16", "use_exllama",
)  # fmt: skip
"""Entries that say how weights were found, not how they are stored."""


@dataclass(frozen=True, slots=True)
class GptqWords:
    """A weight is (code - zero) * scale; the first form of checkpoints has zeros less 1."""

    bits: int
    group_size: int
    desc_act: bool
    first_form: bool

    @property
    def unit(self) -> int:
        """See ``WeightFormat``."""
        return max(1 if self.desc_act else self.group_size, WORD_BITS // self.bits)

    def tensors(self, site: Site) -> Mapping[str, StoredTensor]:
        """See ``WeightFormat``; where inputs of a group lie apart, a rank has all groups."""
        groups, lengths = groups_of(self.group_size)
        if self.desc_act and self.group_size > 0:
            groups, lengths = Axis(), (-(-site.inputs.total // self.group_size),)
        word = WORD_BITS // self.bits
        return {
            "qweight": StoredTensor((Axis("in", word), Axis("out")), torch.int32),
            "qzeros": StoredTensor((groups, Axis("out", word)), torch.int32, lengths),
            "scales": StoredTensor((groups, Axis("out")), torch.float32, lengths),
            "g_idx": StoredTensor((Axis("part"), Axis("in")), torch.int32),
        }

    def coded(self, stored: Mapping[str, Tensor], site: Site) -> CodedWeight:
        """See ``WeightFormat``."""
        codes_IO = unpacked(stored["qweight"], self.bits, 0)[: site.in_features]
        zeros_GO = unpacked(stored["qzeros"], self.bits, 1).to(torch.int16)
        zeros_GO = only_features(zeros_GO, 1, WORD_BITS // self.bits, site) + int(self.first_form)
        return CodedWeight(
            codes_OI=codes_IO.mT.contiguous(),
            scale_OG=stored["scales"].mT.contiguous(),
            zero_OG=zeros_GO.mT.contiguous(),
            group_size=self.group_size if self.group_size > 0 else site.in_features,
            group_I=self._groups(stored["g_idx"], site),
        )

    def _groups(self, groups_PI: Tensor, site: Site) -> Tensor | None:
        """Each input's group, None where they follow one another."""
        inputs = site.inputs
        size = self.group_size if self.group_size > 0 else inputs.total
        in_order_I = torch.arange(inputs.size, device=groups_PI.device) + inputs.first
        expected_PI = groups_PI[:1] if self.desc_act else (in_order_I // size)[None]
        if not groups_PI.is_meta and bool(groups_PI.any()):  # dummy weights have zeros
            most = (inputs.total - 1) // size
            if not bool((groups_PI == expected_PI).all()):
                what = "its parts differ" if self.desc_act else "desc_act is false"
                raise ModelError(f"{site.name}.g_idx takes inputs out of their order, and {what}")
            if not 0 <= int(groups_PI.min()) <= int(groups_PI.max()) <= most:
                raise ModelError(f"{site.name}.g_idx names groups beyond the last one, {most}")
        return groups_PI[0].contiguous() if self.desc_act and self.group_size > 0 else None


class GptqLinear(FormatLinear):
    """AutoGPTQ writes a bias of zeros for each linear that has none."""

    writes_biases = True


class GptqExperts(FormatExperts):
    """See ``GptqLinear``: for those of experts too."""

    writes_biases = True


class Gptq:
    """All linears and experts but those that ``dynamic`` takes out; routers stay plain."""

    def __init__(self, config: Mapping[str, Any], model_config: Mapping[str, Any]) -> None:
        settings = Settings(config)
        settings.take("quant_method", "gptq", "gptq")
        form = settings.take("checkpoint_format", None) or settings.take("format", "gptq")
        if form not in ("gptq", "gptq_v2"):
            settings.take("checkpoint_format", form, "gptq", "gptq_v2")
        settings.skip("format", *IGNORED)
        self._has_head = settings.take("lm_head", False, True, False)
        settings.take("is_marlin_format", False, False)
        settings.take("pack_dtype", "int32", "int32")
        self._form = GptqWords(
            settings.take("bits", 4, 4, 8),
            settings.group_size(WORD_BITS // settings.take("bits", 4)),
            settings.take("desc_act", False, True, False),
            form == "gptq",
        )
        inside = settings.take("modules_in_block_to_quantize", None) or []
        self._only = tuple(
            name for names in inside for name in (names if isinstance(names, list) else [names])
        )
        self._rules = self._read_rules(settings.take("dynamic", None) or {})
        settings.finish()

    def _read_rules(self, dynamic: Mapping[str, Any]) -> list[tuple[str, GptqWords | None]]:
        """Patterns of names, and how these are stored; None: plain."""
        rules: list[tuple[str, GptqWords | None]] = []
        for pattern, changes in dynamic.items():
            if pattern.startswith("-:"):
                rules.append((pattern[2:], None))
                continue
            if not isinstance(changes, dict) or not changes.keys() <= OVERRIDES:
                raise ConfigError(
                    f"dynamic in quantization_config has {pattern!r}: {changes!r}; known are "
                    f"{', '.join(sorted(OVERRIDES))}"
                )
            known = {key: value for key, value in changes.items() if key != "sym"}
            rules.append((pattern.removeprefix("+:"), replace(self._form, **known)))
        return rules

    def _form_of(self, name: str) -> GptqWords | None:
        if self._only and not is_named(name, (*self._only, "lm_head")):
            return None
        for pattern, form in self._rules:
            if re.match(pattern, name):
                return form
        return self._form

    def method_of(self, site: Site | ExpertsSite) -> Method:
        """See ``Quantization``."""
        if site.kind in ("router", "embedding") or (site.kind == "head" and not self._has_head):
            return None
        return method_for(site, self._form_of, GptqLinear, GptqExperts)
