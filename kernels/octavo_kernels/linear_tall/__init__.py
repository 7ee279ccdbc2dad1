"""Linear layers of many tokens on Hopper's tensor cores, with gates and residuals in the epilogue.

Axis suffixes: T tokens, I inner (input) features, O output features, E gate and up features.

These are octavo_kernels.linear's products, for float16 and bfloat16, an I and O of multiples of 8
(a gated product's E of 16) and rows from multiples of 16 bytes: `takes` tells. On the CPU the
reference computes.

Products of thousands of tokens run at the GPU's power limit, so that a plain product takes as long
as cuBLAS's. `gated_linear` saves gates and ups the way through memory: on an H200 it takes 0.86 to
0.96 of the time of cuBLAS and a kernel for the gates. `linear_add_` takes 0.975 of cuBLAS's, on
average of three models' shapes and 2048 to 16384 tokens. `pays` tells where tiles fill the GPU.

A token's result depends on neither the other tokens, their number nor timing. `linear_add_` rounds
the product before it is added. The weight is read while the kernel before still runs: the step must
not write it.
"""

import functools

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
from octavo_kernels.linear_tall import reference

SPEC = KernelSpec(
    name="linear_tall",
    functions={"octavo_linear_tall": (P, P, P, P, I, I, I, I, I, I, L, L)},
    arches=("90a",),
)

UNIT_TOKENS = 256
"""What a pair of multiprocessors takes at once."""

TILE_COSTS = {256: 1.0, 192: 0.775}
"""Rows of the weight beside them, and the time of such a unit by that of 256 rows: less efficient,
but more of them may fit the GPU. Units of 128 rows would be slower than cuBLAS."""

MAX_LOSS = 1.08
"""Time by that of multiprocessors which are never idle; up to this, cuBLAS is hardly faster."""

RESULT_BYTES = 16
"""Results' rows begin at multiples of so many bytes, as x's do."""


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


def pays(tokens: int, rows: int, device_index: int) -> bool:
    """Whether tiles fill the GPU well enough to leave a product to the kernel that it takes."""
    return _tile(tokens, rows, device_index)[1] <= MAX_LOSS


def has_aligned_rows(tensor: Tensor) -> bool:
    """Whether rows are contiguous and begin at multiples of 16 bytes, as x's and results' must."""
    return has_rows_of(RESULT_BYTES, tensor)


def launch(
    out_TO: Tensor, x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None, epilogue: str
) -> None:
    """Compute the product of tensors that have been checked; ``epilogue`` is a key of EPILOGUES."""
    (tokens, features), rows, index = x_TI.shape, weight_OI.shape[0], x_TI.get_device()
    if tokens == 0 or rows == 0:
        return
    library(SPEC, index).octavo_linear_tall(
        out_TO.data_ptr(),
        x_TI.data_ptr(),
        weight_OI.data_ptr(),
        None if bias_O is None else bias_O.data_ptr(),
        DTYPE_CODES[x_TI.dtype],
        EPILOGUES[epilogue],
        _tile(tokens, rows, index)[0],
        tokens,
        features,
        rows,
        x_TI.stride(0),
        out_TO.stride(0),
        stream_of(index),
    )


@functools.lru_cache(maxsize=4096)
def _tile(tokens: int, rows: int, device_index: int) -> tuple[int, float]:
    """The fastest tile's rows, and its time by that of multiprocessors which are never idle."""
    pairs = num_processors(device_index) // 2
    units = {tile: -(-tokens // UNIT_TOKENS) * -(-rows // tile) for tile in TILE_COSTS}
    cost, tile = min((-(-units[tile] // pairs) * TILE_COSTS[tile], tile) for tile in TILE_COSTS)
    return tile, cost * pairs * UNIT_TOKENS * 256 / (tokens * rows)


__all__ = [
    "SPEC",
    "TILE_COSTS",
    "gated_linear",
    "has_aligned_rows",
    "launch",
    "linear",
    "linear_add_",
    "pays",
    "takes",
]
