"""Gated activations. Axis suffixes: T tokens, E twice the intermediate size."""

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
    if gate_up_TE.dim() != 2:
        out_TI = gated_activation(gate_up_TE.reshape(-1, width), activation)
        return out_TI.view(*gate_up_TE.shape[:-1], width // 2)
    dtype, (stride, step), num_tokens = gate_up_TE.dtype, gate_up_TE.stride(), gate_up_TE.shape[0]
    if dtype not in FLOATS or step != 1:
        raise ValueError(
            f"gated_activation: x of {dtype} and strides {(stride, step)} must be float32, "
            "float16 or bfloat16 with a contiguous last axis"
        )
    out_TI = gate_up_TE.new_empty((num_tokens, width // 2))
    if num_tokens and width:
        index = gate_up_TE.get_device()
        library(SPEC, index).octavo_gated_activation(
            gate_up_TE.data_ptr(),
            out_TI.data_ptr(),
            num_tokens,
            width // 2,
            stride,
            DTYPE_CODES[dtype],
            code,
            stream_of(index),
        )
    return out_TI


__all__ = ["SPEC", "gated_activation"]
