"""Activations in one pass. Axis suffixes: T tokens, I what comes out, E all that goes in."""

import torch.nn.functional as F
from torch import Tensor

from octavo_kernels.build import I, KernelSpec, L, P
from octavo_kernels.gated_activation import reference
from octavo_kernels.library import DTYPE_CODES, FLOATS, library, stream_of

SPEC = KernelSpec(
    name="gated_activation",
    functions={"octavo_gated_activation": (P, P, L, I, L, I, I)},
)

ACTIVATIONS = {"silu": 0, "gelu": 1, "gelu_tanh": 2}
"""How the kernel is told an activation."""
QUICK_GELU = 3
"""Code of the activation without an up."""
PLAIN_ACTIVATIONS = ("quick_gelu", "gelu", "gelu_tanh")


def gated_activation(gate_up_TE: Tensor, activation: str) -> Tensor:
    """Return activation(gate) * up for gate and up side by side in the last axis.

    ``activation`` is "silu", "gelu" (exact) or "gelu_tanh".
    """
    code = ACTIVATIONS.get(activation)
    if code is None:
        raise ValueError(
            f"gated_activation: {activation!r} is not known; known: {', '.join(ACTIVATIONS)}"
        )
    width = gate_up_TE.shape[-1]
    if width % 2:
        raise ValueError(
            f"gated_activation: the last axis of {list(gate_up_TE.shape)} must be even: gate, "
            "then up"
        )
    if not gate_up_TE.is_cuda:
        return reference.gated_activation(gate_up_TE, activation)
    return _launch(gate_up_TE, width // 2, code)


def quick_gelu(x_TI: Tensor) -> Tensor:
    """Return x * sigmoid(1.702 x); x may have any leading axes."""
    if not x_TI.is_cuda:
        return reference.quick_gelu(x_TI)
    return _launch(x_TI, x_TI.shape[-1], QUICK_GELU)


def plain_activation(x_TI: Tensor, activation: str) -> Tensor:
    """Return activation(x), without a gate; x may have any leading axes.

    ``activation`` is "quick_gelu", "gelu" (exact) or "gelu_tanh"; the last two are PyTorch's.
    """
    if activation not in PLAIN_ACTIVATIONS:
        raise ValueError(
            f"plain_activation: {activation!r} is not known; known: {', '.join(PLAIN_ACTIVATIONS)}"
        )
    if activation == "quick_gelu":
        return quick_gelu(x_TI)
    return F.gelu(x_TI, approximate="tanh" if activation == "gelu_tanh" else "none")


def _launch(x_TE: Tensor, size: int, code: int) -> Tensor:
    if x_TE.dim() != 2:
        out_TI = _launch(x_TE.reshape(-1, x_TE.shape[-1]), size, code)
        return out_TI.view(*x_TE.shape[:-1], size)
    dtype, (stride, step), num_tokens = x_TE.dtype, x_TE.stride(), x_TE.shape[0]
    if dtype not in FLOATS or step != 1:
        raise ValueError(
            f"gated_activation: x of {dtype} and strides {(stride, step)} must be float32, "
            "float16 or bfloat16 with a contiguous last axis"
        )
    out_TI = x_TE.new_empty((num_tokens, size))
    if num_tokens and size:
        index = x_TE.get_device()
        library(SPEC, index).octavo_gated_activation(
            x_TE.data_ptr(),
            out_TI.data_ptr(),
            num_tokens,
            size,
            stride,
            DTYPE_CODES[dtype],
            code,
            stream_of(index),
        )
    return out_TI


__all__ = ["PLAIN_ACTIVATIONS", "SPEC", "gated_activation", "plain_activation", "quick_gelu"]
