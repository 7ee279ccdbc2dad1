"""Linear layers of few tokens: the weight is streamed once, at the speed of memory.

Axis suffixes: T tokens, I inner (input) features, O output features, E gate and up features.

The kernel takes float16 and bfloat16 on Hopper GPUs for up to ``MAX_TOKENS`` tokens, if I and O are
multiples of 8 (a gated product's E of 16) and rows of x begin at multiples of 16 bytes. It reads
the weight while the kernel before it still runs: weights must not be written by the step. Of more
tokens, about 128 and gated ones of up to 256 go to `linear_mid`, gated products of hundreds of
tokens and sums of thousands to `linear_tall`, all else on CUDA to PyTorch's cuBLAS, and on the CPU
to the reference.

``batch_invariant=True`` gives each token the result it would have alone: it takes the kernel for
any number of tokens, in tiles of 64, and refuses what the kernel cannot do. Without it a result
depends on the number of tokens, but never on timing. Calls on two streams of a device must not
overlap: they share the room for partial sums.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo_kernels import linear_mid, linear_tall
from octavo_kernels.build import I, KernelSpec, L, P
from octavo_kernels.hopper_products import EPILOGUES, num_processors, takes
from octavo_kernels.library import DTYPE_CODES, library, stream_of
from octavo_kernels.linear import reference

SPEC = KernelSpec(
    name="linear",
    functions={"octavo_linear": (P, P, P, P, I, I, I, I, I, I, L, L)},
    arches=("90a",),
)

MAX_TOKENS = 64
"""With more, cuBLAS is faster: the tensor cores count, no longer only memory."""

MIN_TALL_TOKENS = {"gated": 513, "add": 2048}
"""From here on `linear_tall` is faster than cuBLAS where its tiles fit: with gates by 4 to 14 %,
with a residual by 2.5 % on average (0.92 to 1.06 of its time for the shapes of three models)."""

ALWAYS_FUSED_TOKENS = 2048
"""From here on gates and ups never go through memory where ``fuses_gates``."""


def linear(
    x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None, *, batch_invariant: bool = False
) -> Tensor:
    """Return x @ weight.T + bias."""
    _check("linear", x_TI, weight_OI, bias_O)
    if not x_TI.is_cuda:
        return reference.linear(x_TI, weight_OI, bias_O)
    tile = _tile_tokens("linear", x_TI, weight_OI, 8, batch_invariant)
    if tile == 0 and not _is_mid(x_TI, weight_OI, 8):
        return F.linear(x_TI, weight_OI, bias_O)
    out_TO = x_TI.new_empty(x_TI.shape[0], weight_OI.shape[0])
    if tile == 0:
        linear_mid.launch(out_TO, x_TI, weight_OI, bias_O, "store")
    else:
        _launch(out_TO, x_TI, weight_OI, bias_O, "store", tile)
    return out_TO


def linear_add_(
    residual_TO: Tensor,
    x_TI: Tensor,
    weight_OI: Tensor,
    bias_O: Tensor | None = None,
    *,
    batch_invariant: bool = False,
) -> Tensor:
    """Add x @ weight.T + bias to the residual in place and return it; cuBLAS adds a bias first."""
    _check("linear_add_", x_TI, weight_OI, bias_O)
    tokens, rows = x_TI.shape[0], weight_OI.shape[0]
    if residual_TO.shape != (tokens, rows) or residual_TO.dtype is not x_TI.dtype:
        raise ValueError(
            f"linear_add_: the residual, {list(residual_TO.shape)} of {residual_TO.dtype}, must "
            f"be {[tokens, rows]} of {x_TI.dtype}"
        )
    if not x_TI.is_cuda:
        return reference.linear_add_(residual_TO, x_TI, weight_OI, bias_O)
    tile = _tile_tokens("linear_add_", x_TI, weight_OI, 8, batch_invariant)
    if tile == 0:
        if _is_mid(x_TI, weight_OI, 8) and linear_mid.has_aligned_rows(residual_TO):
            linear_mid.launch(residual_TO, x_TI, weight_OI, bias_O, "add")
            return residual_TO
        tall = _is_tall(x_TI, weight_OI, 8, MIN_TALL_TOKENS["add"])
        if tall and linear_tall.has_aligned_rows(residual_TO):
            linear_tall.launch(residual_TO, x_TI, weight_OI, bias_O, "add")
            return residual_TO
        if bias_O is not None:
            residual_TO += bias_O
        return residual_TO.addmm_(x_TI, weight_OI.t())
    if residual_TO.stride(1) != 1 or residual_TO.stride(0) % 2 or residual_TO.data_ptr() % 4:
        raise ValueError(
            f"linear_add_: the residual's rows, strides {residual_TO.stride()}, must be contiguous "
            "and begin at multiples of 4 bytes"
        )
    _launch(residual_TO, x_TI, weight_OI, bias_O, "add", tile)
    return residual_TO


def gated_linear(
    x_TI: Tensor,
    gate_up_EI: Tensor,
    *,
    activation: str,
    bias_E: Tensor | None = None,
    batch_invariant: bool = False,
) -> Tensor:
    """Return activation(x @ gate.T) * (x @ up.T); gate's rows stand before up's in the weight.

    ``activation`` is "silu", "gelu" (exact) or "gelu_tanh".
    """
    _check("gated_linear", x_TI, gate_up_EI, bias_E)
    if activation not in reference.ACTIVATIONS:
        raise ValueError(
            f"gated_linear: {activation!r} is not known; known: {', '.join(reference.ACTIVATIONS)}"
        )
    rows = gate_up_EI.shape[0]
    if rows % 2:
        raise ValueError(f"gated_linear: {rows} rows are not as many gates as ups")
    if not x_TI.is_cuda:
        return reference.gated_linear(x_TI, gate_up_EI, activation, bias_E)
    tile = _tile_tokens("gated_linear", x_TI, gate_up_EI, 16, batch_invariant)
    mid = tile == 0 and _is_mid(x_TI, gate_up_EI, 16)
    if tile == 0 and not mid and not _is_tall(x_TI, gate_up_EI, 16, MIN_TALL_TOKENS["gated"]):
        from octavo_kernels.gated_activation import gated_activation

        return gated_activation(F.linear(x_TI, gate_up_EI, bias_E), activation)
    out_TO = x_TI.new_empty(x_TI.shape[0], rows // 2)
    if mid:
        linear_mid.launch(out_TO, x_TI, gate_up_EI, bias_E, activation)
    elif tile == 0:
        linear_tall.launch(out_TO, x_TI, gate_up_EI, bias_E, activation)
    else:
        _launch(out_TO, x_TI, gate_up_EI, bias_E, activation, tile)
    return out_TO


def _check(function: str, x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> None:
    if x_TI.dim() != 2 or weight_OI.dim() != 2 or x_TI.shape[1] != weight_OI.shape[1]:
        raise ValueError(
            f"{function}: x of shape {list(x_TI.shape)} and weight of shape "
            f"{list(weight_OI.shape)} must have two axes, the last of one size"
        )
    if x_TI.dtype is not weight_OI.dtype or not weight_OI.is_contiguous():
        raise ValueError(
            f"{function}: the weight, {weight_OI.dtype} with strides {weight_OI.stride()}, must "
            f"be contiguous and {x_TI.dtype} as x"
        )
    if bias_O is not None and (
        bias_O.shape != weight_OI.shape[:1] or bias_O.dtype is not x_TI.dtype
    ):
        raise ValueError(
            f"{function}: the bias, {list(bias_O.shape)} of {bias_O.dtype}, must be "
            f"[{weight_OI.shape[0]}] of {x_TI.dtype}"
        )


def _tile_tokens(
    function: str, x_TI: Tensor, weight_OI: Tensor, row_multiple: int, batch_invariant: bool
) -> int:
    """How many tokens the kernel takes at once; 0 where it is not to be used."""
    tokens = x_TI.shape[0]
    is_taken = takes(x_TI, weight_OI, row_multiple=row_multiple)
    if batch_invariant:
        if not is_taken:
            raise ValueError(
                f"{function}: x {list(x_TI.shape)} of {x_TI.dtype} with strides {x_TI.stride()} "
                f"and weight {list(weight_OI.shape)} cannot be multiplied batch-invariantly: that "
                f"needs a Hopper GPU, 16-bit floats, sizes of {row_multiple} and rows of 16 bytes"
            )
        return MAX_TOKENS if tokens else 0
    if not is_taken or not 0 < tokens <= MAX_TOKENS:
        return 0
    return max(8, 1 << (tokens - 1).bit_length())


def _is_mid(x_TI: Tensor, weight_OI: Tensor, row_multiple: int) -> bool:
    """Whether the product is best left to `linear_mid`; 16 for a gated one."""
    rows, features = weight_OI.shape
    return linear_mid.pays(x_TI.shape[0], rows, features, gated=row_multiple == 16) and takes(
        x_TI, weight_OI, row_multiple=row_multiple
    )


def _is_tall(x_TI: Tensor, weight_OI: Tensor, row_multiple: int, min_tokens: int) -> bool:
    """Whether the product is best left to `linear_tall`."""
    tokens = x_TI.shape[0]
    return (
        tokens >= min_tokens
        and takes(x_TI, weight_OI, row_multiple=row_multiple)
        and (
            (tokens >= ALWAYS_FUSED_TOKENS and row_multiple == 16)
            or linear_tall.pays(tokens, weight_OI.shape[0], x_TI.get_device())
        )
    )


def fuses_gates(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether gated products of many tokens need no memory for their gates and ups."""
    return (
        dtype in (torch.bfloat16, torch.float16)
        and device.type == "cuda"
        and num_processors(device.index or 0) > 0
    )


def _launch(
    out_TO: Tensor,
    x_TI: Tensor,
    weight_OI: Tensor,
    bias_O: Tensor | None,
    epilogue: str,
    tile_tokens: int,
) -> None:
    tokens, features = x_TI.shape
    index = x_TI.device.index
    library(SPEC, index).octavo_linear(
        out_TO.data_ptr(),
        x_TI.data_ptr(),
        weight_OI.data_ptr(),
        None if bias_O is None else bias_O.data_ptr(),
        DTYPE_CODES[x_TI.dtype],
        EPILOGUES[epilogue],
        tile_tokens,
        tokens,
        features,
        weight_OI.shape[0],
        x_TI.stride(0),
        out_TO.stride(0),
        stream_of(index),
    )


__all__ = [
    "ALWAYS_FUSED_TOKENS",
    "MAX_TOKENS",
    "SPEC",
    "fuses_gates",
    "gated_linear",
    "linear",
    "linear_add_",
]
