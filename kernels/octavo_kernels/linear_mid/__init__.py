"""Linear layers of some hundred tokens on Hopper, where memory and tensor cores both count.

Axis suffixes: T tokens, I inner (input) features, O output features, E gate and up features.

These are octavo_kernels.linear's products, for float16 and bfloat16, an I and O of multiples of 8
(a gated product's E of 16) and rows of x from multiples of 16 bytes: `takes` tells. On the CPU the
reference computes. `pays` tells where the kernel is faster than cuBLAS and what follows it.

A result depends on the number of tokens, which chooses the tiles, but never on timing. The weight
is read while the kernel before still runs: the step must not write it.
"""

from torch import Tensor

from octavo_kernels.build import I, KernelSpec, L, P
from octavo_kernels.hopper_products import (
    EPILOGUES,
    check,
    check_residual,
    has_rows_of,
    num_processors,
    takes,
)
from octavo_kernels.library import DTYPE_CODES, library, stream_of
from octavo_kernels.linear_mid import reference
from octavo_kernels.linear_mid.tiling import TILE_TOKENS, choose, pays

SPEC = KernelSpec(
    name="linear_mid",
    functions={"octavo_linear_mid": (P, P, P, P, I, I, I, I, I, L, L, I, I, I)},
    sources=("kernel.cu", "bfloat16.cu", "float16.cu"),
    arches=("90a",),
)

RESULT_BYTES = 8
"""Results' rows begin at multiples of so many bytes."""


def linear(x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """Return x @ weight.T + bias."""
    check("linear", x_TI, weight_OI, bias_O, 8)
    if not x_TI.is_cuda:
        return reference.linear(x_TI, weight_OI, bias_O)
    out_TO = x_TI.new_empty(x_TI.shape[0], weight_OI.shape[0])
    launch(out_TO, x_TI, weight_OI, bias_O, "store")
    return out_TO


def linear_add_(
    residual_TO: Tensor, x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None
) -> Tensor:
    """Add x @ weight.T + bias to the residual in place and return it."""
    check("linear_add_", x_TI, weight_OI, bias_O, 8)
    check_residual(residual_TO, x_TI, weight_OI, num_bytes=RESULT_BYTES)
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
    check("gated_linear", x_TI, gate_up_EI, bias_E, 16)
    if not x_TI.is_cuda:
        return reference.gated_linear(x_TI, gate_up_EI, activation, bias_E)
    out_TO = x_TI.new_empty(x_TI.shape[0], gate_up_EI.shape[0] // 2)
    launch(out_TO, x_TI, gate_up_EI, bias_E, activation)
    return out_TO


def has_aligned_rows(tensor: Tensor) -> bool:
    """Whether rows are contiguous and begin at multiples of 8 bytes, as results' must."""
    return has_rows_of(RESULT_BYTES, tensor)


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
        num_processors(index),
        stream_of(index),
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
