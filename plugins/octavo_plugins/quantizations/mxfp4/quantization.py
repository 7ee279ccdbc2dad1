"""``quant_method`` "mxfp4": blocks of 32 numbers of 4 bits (e2m1) and a power of two for each.

Axis suffixes: O outputs, I inputs, G groups of 32 inputs, B bytes of a group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from octavo.layers.formats import CodedWeight, StoredTensor, WeightFormat
from octavo_plugins.quantizations.settings import Method, Settings, is_named, method_for
from octavo_registry import Axis, ExpertsSite, Site

GROUP: Final = 32
HALVES: Final = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""What each code is, in halves; the highest bit is the sign."""
BIAS: Final = 127
"""What exponents of scales are stored with."""


@dataclass(frozen=True)
class Mxfp4Blocks:
    """Two numbers a byte, the first in the lower bits."""

    unit = GROUP

    def tensors(self, site: Site) -> Mapping[str, StoredTensor]:
        """See ``WeightFormat``."""
        out, groups = Axis("out"), Axis("in", GROUP)
        return {
            "blocks": StoredTensor((out, groups, Axis()), torch.uint8, (GROUP // 2,)),
            "scales": StoredTensor((out, groups), torch.uint8),
        }

    def coded(self, stored: Mapping[str, Tensor], site: Site) -> CodedWeight:
        """See ``WeightFormat``."""
        bytes_OGB = stored["blocks"]
        codes = torch.stack((bytes_OGB & 15, bytes_OGB >> 4), dim=-1).flatten(1)
        halves = torch.tensor(HALVES, dtype=torch.int8, device=codes.device)
        exponents_OG = stored["scales"].int() - BIAS - 1
        ones_OG = torch.ones_like(exponents_OG, dtype=torch.float32)
        return CodedWeight(
            codes_OI=halves[codes[:, : site.in_features].int()],
            scale_OG=torch.ldexp(ones_OG, exponents_OG),
            group_size=GROUP,
        )


class Mxfp4:
    """Stacks of experts; all else is plain."""

    def __init__(self, config: Mapping[str, Any], model_config: Mapping[str, Any]) -> None:
        settings = Settings(config)
        settings.take("quant_method", "mxfp4", "mxfp4")
        self._plain = settings.names("modules_to_not_convert")
        settings.skip("dequantize")
        settings.finish()

    def method_of(self, site: Site | ExpertsSite) -> Method:
        """See ``Quantization``."""
        return method_for(site, self._form_of) if site.kind == "experts" else None

    def _form_of(self, name: str) -> WeightFormat | None:
        return None if is_named(name, self._plain) else Mxfp4Blocks()
