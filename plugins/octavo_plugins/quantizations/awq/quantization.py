"""``quant_method`` "awq": words of 8 outputs, with scales and zeros for groups of inputs.

Axis suffixes: O outputs, I inputs, G groups of inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from octavo.layers.formats import (
    CodedWeight,
    StoredTensor,
    only_features,
    unpacked,
)
from octavo_plugins.quantizations.settings import OneForm, Settings, groups_of
from octavo_registry import Axis, Site

WORD: Final = 8
ORDER: Final = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of a word's outputs its 4 bits are, from the lowest on."""


@dataclass(frozen=True, slots=True)
class AwqWords:
    """Inputs come first; a weight is (code - zero) * scale."""

    group_size: int

    @property
    def unit(self) -> int:
        """See ``WeightFormat``."""
        return max(self.group_size, WORD)

    def tensors(self, site: Site) -> Mapping[str, StoredTensor]:
        """See ``WeightFormat``."""
        groups, lengths = groups_of(self.group_size)
        words = Axis("out", WORD)
        return {
            "qweight": StoredTensor((Axis("in"), words), torch.int32),
            "qzeros": StoredTensor((groups, words), torch.int32, lengths),
            "scales": StoredTensor((groups, Axis("out")), torch.float32, lengths),
        }

    def coded(self, stored: Mapping[str, Tensor], site: Site) -> CodedWeight:
        """See ``WeightFormat``."""
        codes_IO, zeros_GO = (
            only_features(unpacked(stored[key], 4, 1, ORDER), 1, WORD, site)
            for key in ("qweight", "qzeros")
        )
        return CodedWeight(
            codes_OI=codes_IO.mT.contiguous(),
            scale_OG=stored["scales"].mT.contiguous(),
            zero_OG=zeros_GO.mT.contiguous(),
            group_size=self.group_size if self.group_size > 0 else site.in_features,
        )


class Awq(OneForm):
    """All linears and experts but those that the list names; routers stay plain."""

    def __init__(self, config: Mapping[str, Any], model_config: Mapping[str, Any]) -> None:
        settings = Settings(config)
        settings.take("quant_method", "awq", "awq")
        settings.take("bits", 4, 4)
        settings.take("zero_point", True, True)
        version = settings.take("version", "gemm")
        if str(version).lower() != "gemm":
            settings.take("version", "gemm", "gemm", "GEMM")
        self._form = AwqWords(settings.group_size(WORD))
        self._plain = settings.names("modules_to_not_convert")
        settings.skip("backend", "do_fuse", "exllama_config", "fuse_max_seq_len")
        settings.skip("modules_to_fuse", "w_bit", "q_group_size")
        settings.finish()
