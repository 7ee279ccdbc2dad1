"""Rotary position embedding. Axis suffixes: T tokens, H heads, D head dim, F frequencies."""

import torch
from torch import Tensor

from octavo_kernels.build import I, KernelSpec, L, P
from octavo_kernels.library import DTYPE_CODES, FLOATS, library, stream_of
from octavo_kernels.rotary import reference

SPEC = KernelSpec(
    name="rotary",
    functions={"octavo_rotary": (P, P, P, L, I, I, L, L, L, L, I, I)},
)


def rotary_(x_THD: Tensor, cos_TF: Tensor, sin_TF: Tensor) -> Tensor:
    """Rotate the first 2 F entries of every head in place, each half against the other; return x.

    Computed in float32 and rounded once; angles are float32 or of x's dtype. Queries and keys that
    lie side by side are rotated in one call.
    """
    num_tokens, num_heads, head_dim = x_THD.shape
    if cos_TF.shape != sin_TF.shape or cos_TF.shape[0] != num_tokens:
        raise ValueError(
            f"rotary_: cos {list(cos_TF.shape)} and sin {list(sin_TF.shape)} must have one row for "
            f"each of the {num_tokens} tokens of x"
        )
    num_pairs = cos_TF.shape[1]
    if 2 * num_pairs > head_dim:
        raise ValueError(
            f"rotary_: {num_pairs} frequencies need {2 * num_pairs} entries per head, "
            f"x has {head_dim}"
        )
    if not x_THD.is_cuda:
        return reference.rotary_(x_THD, cos_TF, sin_TF)
    dtype, angle_dtype = x_THD.dtype, cos_TF.dtype
    if (
        dtype not in FLOATS
        or angle_dtype not in (torch.float32, dtype)
        or sin_TF.dtype is not angle_dtype
    ):
        raise ValueError(
            f"rotary_: x is {dtype}, cos {angle_dtype} and sin {sin_TF.dtype}; x must be float32, "
            "float16 or bfloat16, and both angles float32 or as x"
        )
    x_token, x_head, x_step = x_THD.stride()
    (cos_token, cos_step), (sin_token, sin_step) = cos_TF.stride(), sin_TF.stride()
    if (x_step, cos_step, sin_step) != (1, 1, 1):
        raise ValueError(
            f"rotary_: the last axes of x, cos and sin have steps {x_step}, {cos_step} and "
            f"{sin_step}; they must be 1"
        )
    if num_tokens and num_heads and num_pairs:
        index = x_THD.get_device()
        library(SPEC, index).octavo_rotary(
            x_THD.data_ptr(),
            cos_TF.data_ptr(),
            sin_TF.data_ptr(),
            num_tokens,
            num_heads,
            num_pairs,
            x_token,
            x_head,
            cos_token,
            sin_token,
            DTYPE_CODES[dtype],
            DTYPE_CODES[angle_dtype],
            stream_of(index),
        )
    return x_THD


__all__ = ["SPEC", "rotary_"]
