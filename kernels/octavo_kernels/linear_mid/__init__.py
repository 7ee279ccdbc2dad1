"""Linear layers of some hundred tokens on Hopper, where memory and tensor cores both count.

Axis suffixes: T tokens, I inner (input) features, O output features, E gate and up features.

These are octavo_kernels.linear's products, for float16 and bfloat16, an I and O of multiples of 8
(a gated product's E of 16) and rows of x from multiples of 16 bytes: `takes` tells. On the CPU the
reference computes. `pays` tells where the kernel is faster than cuBLAS and what follows it.

A result depends on the number of tokens, which chooses the tiles, but never on timing. The weight
is read while the kernel before still runs: the step must not write it.
"""

import functools

import torch
from torch import Tensor

from octavo_kernels.build import I, KernelSpec, L, P
from octavo_kernels.library import DTYPE_CODES, library, stream_of
from octavo_kernels.linear_mid import reference
from octavo_kernels.linear_mid.tiling import TILE_TOKENS, choose, pays

SPEC = KernelSpec(
    name="linear_mid",
    functions={"octavo_linear_mid": (P, P, P, P, I, I, I, I, I, L, L, I, I, I)},
    sources=("kernel.cu", "bfloat16.cu", "float16.cu"),
    arches=("90a",),
)

EPILOGUES = {"store": 0, "add": 1, "silu": 2, "gelu": 3, "gelu_tanh": 4}
"""How the kernel is told what to do with sums."""


def linear(x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """Return x @ weight.T + bias."""
    _check("linear", x_TI, weight_OI, bias_O, 8)
    if not x_TI.is_cuda:
        return reference.linear(x_TI, weight_OI, bias_O)
    out_TO = x_TI.new_empty(x_TI.shape[0], weight_OI.shape[0])
    launch(out_TO, x_TI, weight_OI, bias_O, "store")
    return out_TO


def linear_add_(
    residual_TO: Tensor, x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None
) -> Tensor:
    """Add x @ weight.T + bias to the residual in place and return it."""
    _check("linear_add_", x_TI, weight_OI, bias_O, 8)
    shape = (x_TI.shape[0], weight_OI.shape[0])
    if (
        residual_TO.shape != shape
        or residual_TO.dtype is not x_TI.dtype
        or (residual_TO.is_cuda and not has_aligned_rows(residual_TO))
    ):
        raise ValueError(
            f"linear_add_: the residual, {list(residual_TO.shape)} of {residual_TO.dtype} with "
            f"strides {residual_TO.stride()}, must be {list(shape)} of {x_TI.dtype}, its rows "
            "contiguous and from multiples of 8 bytes"
        )
    if not x_TI.is_cuda:
        return reference.linear_add_(residual_TO, x_TI, weight_OI, bias_O)
    launch(residual_TO, x_TI, weight_OI, bias_O, "add")
    return residual_TO


def gated_linear(
    x_TI: Tensor, gate_up_EI: Tensor, *, activation: str, bias_E: Tensor | None = None
) -> Tensor:
    """Return activation(x @ gate.T) * (x @ up.T); gate's rows stand before up's in the weight.

    ``activation`` is "silu", "gelu" (exact) or "gelu_tanh".
    """
    if activation not in reference.ACTIVATIONS:
        raise ValueError(
            f"gated_linear: {activation!r} is not known; known: {', '.join(reference.ACTIVATIONS)}"
        )
    _check("gated_linear", x_TI, gate_up_EI, bias_E, 16)
    if not x_TI.is_cuda:
        return reference.gated_linear(x_TI, gate_up_EI, activation, bias_E)
    out_TO = x_TI.new_empty(x_TI.shape[0], gate_up_EI.shape[0] // 2)
    launch(out_TO, x_TI, gate_up_EI, bias_E, activation)
    return out_TO


def takes(x_TI: Tensor, weight_OI: Tensor, *, row_multiple: int = 8) -> bool:
    """Whether the kernel can multiply tensors that fit each other; 16 for a gated product."""
    features = x_TI.shape[1]
    row_stride, step = x_TI.stride()
    return (
        x_TI.dtype in (torch.bfloat16, torch.float16)
        and x_TI.is_cuda
        and features % 8 == 0
        and features > 0
        and weight_OI.shape[0] % row_multiple == 0
        and step == 1
        and row_stride % 8 == 0
        and (x_TI.data_ptr() | weight_OI.data_ptr()) % 16 == 0
        and _num_processors(x_TI.get_device()) > 0
    )


def has_aligned_rows(tensor: Tensor) -> bool:
    """Whether rows are contiguous and begin at multiples of 8 bytes, as results' must."""
    row_stride, step = tensor.stride()
    return step == 1 and row_stride % 4 == 0 and tensor.data_ptr() % 8 == 0


def launch(
    out_TO: Tensor, x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None, epilogue: str
) -> None:
    """Compute the product of tensors that have been checked; ``epilogue`` is a key of EPILOGUES."""
    (tokens, features), rows, index = x_TI.shape, weight_OI.shape[0], x_TI.get_device()
    if tokens == 0 or rows == 0:
        return
    tile_rows, splits = choose(-(-tokens // TILE_TOKENS), rows, features)
    library(SPEC, index).octavo_linear_mid(
        out_TO.data_ptr(),
        x_TI.data_ptr(),
        weight_OI.data_ptr(),
        None if bias_O is None else bias_O.data_ptr(),
        DTYPE_CODES[x_TI.dtype],
        EPILOGUES[epilogue],
        tokens,
        features,
        rows,
        x_TI.stride(0),
        out_TO.stride(0),
        tile_rows,
        splits,
        _num_processors(index),
        stream_of(index),
    )


@functools.cache
def _num_processors(device_index: int) -> int:
    """Multiprocessors of a Hopper GPU; 0 for others."""
    properties = torch.cuda.get_device_properties(device_index)
    return properties.multi_processor_count if properties.major == 9 else 0


def _check(
    function: str, x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None, row_multiple: int
) -> None:
    if (
        x_TI.dim() != 2
        or weight_OI.dim() != 2
        or x_TI.shape[1] != weight_OI.shape[1]
        or x_TI.dtype is not weight_OI.dtype
        or not weight_OI.is_contiguous()
        or weight_OI.shape[0] % (row_multiple // 8)
    ):
        raise ValueError(
            f"{function}: x {list(x_TI.shape)} of {x_TI.dtype} and weight {list(weight_OI.shape)} "
            f"of {weight_OI.dtype} with strides {weight_OI.stride()} must be of two axes, the "
            "last of one size, and of one dtype, the weight contiguous, with as many ups as gates"
        )
    if bias_O is not None and (
        bias_O.shape != weight_OI.shape[:1] or bias_O.dtype is not x_TI.dtype
    ):
        raise ValueError(
            f"{function}: the bias, {list(bias_O.shape)} of {bias_O.dtype}, must be "
            f"[{weight_OI.shape[0]}] of {x_TI.dtype}"
        )
    if x_TI.is_cuda and not takes(x_TI, weight_OI, row_multiple=row_multiple):
        raise ValueError(
            f"{function}: x {list(x_TI.shape)} of {x_TI.dtype} with strides {x_TI.stride()} and "
            f"weight {list(weight_OI.shape)} need a Hopper GPU, 16-bit floats, features of 8, "
            f"rows of {row_multiple} and x's rows contiguous and from multiples of 16 bytes"
        )


__all__ = [
    "SPEC",
    "gated_linear",
    "has_aligned_rows",
    "launch",
    "linear",
    "linear_add_",
    "pays",
    "takes",
]
