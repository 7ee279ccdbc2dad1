"""Rotary position angles and their scalings, as config.json names them.

Axis suffixes: T tokens, P positions, F frequencies (half of the rotated entries of a head).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from octavo.errors import ModelError
from octavo_registry.model import ModelSpec

log = logging.getLogger(__name__)

Angles = tuple[Tensor, Tensor]
"""Cosines and sines [T, F] of a step's tokens."""

ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "longrope", "yarn")


class RotaryEmbedding(nn.Module):
    """The cosines and sines of all positions, made once; models share one instance per model.

    Angles are float32 whatever the model's dtype, to which only their cosines and sines are
    rounded.
    """

    def __init__(self, rotary_dim: int, *, spec: ModelSpec) -> None:
        super().__init__()
        frequencies_F, magnitude = rotary_frequencies(spec.config, rotary_dim, spec.max_model_len)
        positions_P = torch.arange(spec.max_model_len, dtype=torch.float32, device=spec.device)
        angles_PF = torch.outer(positions_P, frequencies_F.to(spec.device))
        table_P2F = torch.stack((angles_PF.cos(), angles_PF.sin()), dim=1).mul_(magnitude)
        self._table_P2F: Tensor
        self.register_buffer("_table_P2F", table_P2F.to(spec.dtype), persistent=False)

    def forward(self, positions_T: Tensor) -> Angles:
        """Cosines and sines [T, F] of these positions, the same for all layers of a step."""
        cos_TF, sin_TF = self._table_P2F.index_select(0, positions_T).unbind(1)
        return cos_TF, sin_TF


class MultiAxisRotary(RotaryEmbedding):
    """Each frequency turns by a token's time, height or width (M-RoPE).

    ``sections`` are how many frequencies each axis has: side by side, or ``interleaved`` as
    T H W T H W ..., of which the axes beyond the first end where theirs do.
    """

    def __init__(
        self,
        rotary_dim: int,
        sections: Sequence[int],
        *,
        interleaved: bool = False,
        spec: ModelSpec,
    ) -> None:
        super().__init__(rotary_dim, spec=spec)
        if sum(sections) != rotary_dim // 2 or len(sections) != 3:
            raise ModelError(
                f"mrope_section={list(sections)!r} must be three numbers of frequencies, "
                f"{rotary_dim // 2} together"
            )
        if interleaved:
            axes = [0] * (rotary_dim // 2)
            for axis in (1, 2):
                axes[axis : 3 * sections[axis] : 3] = [axis] * sections[axis]
        else:
            axes = [axis for axis, size in enumerate(sections) for _ in range(size)]
        self._axes_F: Tensor
        self.register_buffer("_axes_F", torch.tensor(axes, device=spec.device), persistent=False)

    def forward(self, positions_AT: Tensor) -> Angles:
        """Cosines and sines [T, F] of tokens with three positions each."""
        shape = positions_AT.shape
        turned_AT2F = self._table_P2F.index_select(0, positions_AT.flatten()).unflatten(0, shape)
        axes_1T2F = self._axes_F.expand(1, *turned_AT2F.shape[1:])
        cos_TF, sin_TF = turned_AT2F.gather(0, axes_1T2F)[0].unbind(1)
        return cos_TF, sin_TF


def rope_parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """The rope settings of a config.json, old (rope_theta, rope_scaling) or new style, as one."""
    settings = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    if any(isinstance(value, Mapping) for value in settings.values()):
        raise ModelError(
            f"rope_parameters in config.json differ by kind of layer ({', '.join(settings)}), "
            "which this architecture does not know"
        )
    settings["rope_type"] = settings.get("rope_type") or settings.get("type") or "default"
    if settings["rope_type"] == "mrope":  # in the first checkpoints of Qwen2-VL
        settings["rope_type"] = "default"
    if "long_factor" in settings and settings["rope_type"] in ("su", "yarn"):
        settings["rope_type"] = "longrope"  # its names in the first checkpoints of Phi 3
    settings["rope_theta"] = settings.get("rope_theta") or config.get("rope_theta") or 10000.0
    settings["original_max_position_embeddings"] = (
        config.get("original_max_position_embeddings")
        or settings.get("original_max_position_embeddings")
        or config.get("max_position_embeddings")
    )
    return settings


def rotary_frequencies(
    config: Mapping[str, Any], rotary_dim: int, max_model_len: int
) -> tuple[Tensor, float]:
    """Radians per position [F] in float32, and what cosines and sines are multiplied by."""
    settings = rope_parameters(config)
    rope_type = settings["rope_type"]
    theta = float(settings["rope_theta"])
    exponents_F = torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim
    frequencies_F = 1.0 / theta**exponents_F
    if rope_type == "default":
        return frequencies_F, 1.0
    if rope_type == "linear":
        return frequencies_F / _number(settings, "factor"), 1.0
    if rope_type == "dynamic":
        trained = int(config["max_position_embeddings"])
        if max_model_len > trained:
            raise ModelError(
                f"rope_type='dynamic' changes earlier keys once a sequence exceeds {trained} "
                f"tokens, which a cache cannot follow; set max_model_len={trained} or less"
            )
        return frequencies_F, 1.0
    if rope_type == "llama3":
        return _llama3(frequencies_F, settings), 1.0
    if rope_type == "longrope":
        return _longrope(frequencies_F, settings, config, max_model_len)
    if rope_type == "yarn":
        return _yarn(frequencies_F, settings, config)
    raise ModelError(f"rope_type={rope_type!r} is not known; known: {', '.join(ROPE_TYPES)}")


def _number(settings: Mapping[str, Any], name: str, default: float | None = None) -> float:
    value = settings.get(name)
    if value is None:
        value = default
    if value is None:
        raise ModelError(f"rope_type={settings['rope_type']!r} in config.json needs {name!r}")
    return float(value)


def _llama3(frequencies_F: Tensor, settings: Mapping[str, Any]) -> Tensor:
    """Slow turns by 1 / factor, fast ones unchanged, counted over the trained length."""
    trained = _number(settings, "original_max_position_embeddings")
    low, high = _number(settings, "low_freq_factor"), _number(settings, "high_freq_factor")
    turns_F = trained * frequencies_F / (2 * math.pi)
    kept_F = ((turns_F - low) / (high - low)).clamp(0.0, 1.0)
    return frequencies_F * (kept_F + (1.0 - kept_F) / _number(settings, "factor"))


def _longrope(
    frequencies_F: Tensor,
    settings: Mapping[str, Any],
    config: Mapping[str, Any],
    max_model_len: int,
) -> tuple[Tensor, float]:
    """A divisor for each frequency, from one of two lists (arXiv:2402.13753).

    Transformers goes over to the second list once a sequence exceeds the trained length, which a
    cache of turned keys cannot follow: here ``max_model_len`` decides for all sequences.
    """
    trained = int(_number(settings, "original_max_position_embeddings"))
    if max_model_len > trained:
        log.warning(
            "rope_type='longrope': max_model_len=%d is above %d, so that sequences of any length "
            "use the factors for long ones; where short ones matter most, set max_model_len=%d",
            *(max_model_len, trained, trained),
        )
    which = "long_factor" if max_model_len > trained else "short_factor"
    factors = settings.get(which)
    if not isinstance(factors, list) or len(factors) != len(frequencies_F):
        raise ModelError(
            f"rope_type='longrope' in config.json needs {which!r}, a list of {len(frequencies_F)} "
            f"numbers, not {factors!r}"
        )
    longer = _number(settings, "factor", config["max_position_embeddings"] / trained)
    default = math.sqrt(1 + math.log(longer) / math.log(trained)) if longer > 1.0 else 1.0
    divided_F = frequencies_F / torch.tensor(factors, dtype=torch.float32)
    return divided_F, _number(settings, "attention_factor", default)


def _yarn(
    frequencies_F: Tensor, settings: Mapping[str, Any], config: Mapping[str, Any]
) -> tuple[Tensor, float]:
    """The blend of ``_llama3`` as a ramp over frequency indices (arXiv:2309.00071, section 3.2)."""
    trained = _number(settings, "original_max_position_embeddings")
    factor = _number(settings, "factor", config["max_position_embeddings"] / trained)
    num_frequencies = len(frequencies_F)
    log_theta = math.log(settings["rope_theta"])

    def index_of(turns: float) -> float:
        """The frequency index that turns so often within the trained length."""
        return num_frequencies * math.log(trained / (turns * 2 * math.pi)) / log_theta

    low = index_of(settings.get("beta_fast") or 32.0)
    high = index_of(settings.get("beta_slow") or 1.0)
    if settings.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * num_frequencies - 1)
    index_F = torch.arange(num_frequencies, dtype=torch.float32)
    ramp_F = ((index_F - low) / max(high - low, 0.001)).clamp(0.0, 1.0)
    scaled_F = frequencies_F * ((1.0 - ramp_F) + ramp_F / factor)
    return scaled_F, _magnitude(settings, factor)


def yarn_magnitude(factor: float, weight: float = 1.0) -> float:
    """What cosines and sines are multiplied by, so that attention stays sharp over the distance."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def _magnitude(settings: Mapping[str, Any], factor: float) -> float:
    if settings.get("attention_factor") is not None:
        return float(settings["attention_factor"])
    mscale, all_dim = settings.get("mscale"), settings.get("mscale_all_dim")
    if mscale and all_dim:
        return yarn_magnitude(factor, mscale) / yarn_magnitude(factor, all_dim)
    return yarn_magnitude(factor)
