"""Linear layers, plain, activated, gated or added to a residual, each by its fastest kernel.

Axis suffixes: T tokens, I inner (input) features, O output features, E gate and up features.

Kernels take float16 and bfloat16 on Hopper GPUs, if I and O are multiples of 8 (a gated product's E
of 16) and rows of x begin at multiples of 16 bytes, a residual's at some of 4 to 16. Up to
``MAX_TOKENS`` tokens, the one of this folder streams the weight once, at the speed of memory. Of
more, about 128 and gated ones of up to 256 go to `linear_mid`, gated products of hundreds of
tokens, sums and activated ones of thousands to `linear_tall`; all else on CUDA to PyTorch's cuBLAS,
and on the CPU to the reference. Kernels read the weight while the kernel before them still runs:
weights must not be written by the step. `octavo_kernels.linear.adapted` adds LoRA adapters in the
same launch.

``batch_invariant=True`` gives each token the result it would have alone: it takes the kernel of
this folder for any number of tokens, in tiles of 64, and refuses what the kernel cannot do. Without
it a result depends on the number of tokens, but never on timing. Calls on two streams of a device
must not overlap: they share the room for partial sums.
"""

import functools
from collections.abc import Collection

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo_kernels import linear_mid, linear_tall
from octavo_kernels.build import I, KernelSpec, L, P
from octavo_kernels.gated_activation import gated_activation, plain_activation
from octavo_kernels.hopper_products import (
    Launch,
    call,
    has_rows_of,
    is_gated,
    is_plain_activation,
    num_processors,
    product,
    takes,
)
from octavo_kernels.library import library
from octavo_kernels.linear import reference
from octavo_kernels.linear_tall import ALWAYS_FUSED_TOKENS

SPEC = KernelSpec(
    name="linear",
    functions={
        "octavo_linear": (P, P, P, P, I, I, I, I, I, I, L, L),
        "octavo_linear_adapted": (
            *(P, P, P, P, I, I, I, I, I, I, L, L),
            *(P, P, P, P, P, P, I, P, I, I, I, I, I),
        ),
    },
    sources=("kernel.cu", "adapted.cu"),
    arches=("90a",),
)

MAX_TOKENS = 64
"""With more, cuBLAS is faster: the tensor cores count, no longer only memory."""

RESULT_BYTES = 4
"""Results' rows begin at multiples of so many bytes."""


def linear(
    x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None, *, batch_invariant: bool = False
) -> Tensor:
    """Return x @ weight.T + bias."""
    _check("linear", x_TI, weight_OI, bias_O)
    if not x_TI.is_cuda:
        return reference.linear(x_TI, weight_OI, bias_O)
    kernel = kernel_for("linear", x_TI, weight_OI, "store", None, batch_invariant)
    if kernel is None:
        return F.linear(x_TI, weight_OI, bias_O)
    return product(kernel, x_TI, weight_OI, bias_O, "store")


def activated_linear(
    x_TI: Tensor,
    weight_OI: Tensor,
    bias_O: Tensor | None = None,
    *,
    activation: str,
    batch_invariant: bool = False,
) -> Tensor:
    """Return activation(x @ weight.T + bias).

    ``activation`` is "quick_gelu", "gelu" (exact) or "gelu_tanh".
    """
    _check("activated_linear", x_TI, weight_OI, bias_O)
    _check_activation("activated_linear", activation, reference.PLAIN_ACTIVATIONS)
    if not x_TI.is_cuda:
        return reference.activated_linear(x_TI, weight_OI, activation, bias_O)
    if not batch_invariant:
        epilogue = f"plain_{activation}"
        kernel = kernel_for("activated_linear", x_TI, weight_OI, epilogue, None, False)
        if kernel is not None:
            return product(kernel, x_TI, weight_OI, bias_O, epilogue)
    product_TO = linear(x_TI, weight_OI, bias_O, batch_invariant=batch_invariant)
    return plain_activation(product_TO, activation)


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
    kernel = kernel_for(
        *("linear_add_", x_TI, weight_OI, "add", residual_TO, batch_invariant),
        has_bias=bias_O is not None,
    )
    if kernel is not None:
        kernel(residual_TO, x_TI, weight_OI, bias_O, "add")
        return residual_TO
    if bias_O is not None:
        residual_TO += bias_O
    return residual_TO.addmm_(x_TI, weight_OI.t())


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
    _check_activation("gated_linear", activation, reference.ACTIVATIONS)
    if gate_up_EI.shape[0] % 2:
        raise ValueError(f"gated_linear: {gate_up_EI.shape[0]} rows are not as many gates as ups")
    if not x_TI.is_cuda:
        return reference.gated_linear(x_TI, gate_up_EI, activation, bias_E)
    kernel = kernel_for("gated_linear", x_TI, gate_up_EI, activation, None, batch_invariant)
    if kernel is not None:
        return product(kernel, x_TI, gate_up_EI, bias_E, activation)
    return gated_activation(F.linear(x_TI, gate_up_EI, bias_E), activation)


def launch(
    out_TO: Tensor,
    x_TI: Tensor,
    weight_OI: Tensor,
    bias_O: Tensor | None,
    epilogue: str,
    *,
    tile_tokens: int | None = None,
) -> None:
    """See `hopper_products.Launch`. Tiles have 8, 16, 32 or 64 tokens, by default as few as fit."""
    tile_tokens = tile_tokens or fitting_tile(x_TI.shape[0])
    function = library(SPEC, x_TI.get_device()).octavo_linear
    call(function, out_TO, x_TI, weight_OI, bias_O, epilogue, tile_tokens)


def fitting_tile(num_tokens: int) -> int:
    """Tokens of the smallest tile that has so many, or of the largest."""
    return max(8, 1 << (min(num_tokens, MAX_TOKENS) - 1).bit_length())


_launch_invariant = functools.partial(launch, tile_tokens=MAX_TOKENS)


def fuses_gates(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether gated products of many tokens need no memory for their gates and ups."""
    return (
        dtype in (torch.bfloat16, torch.float16)
        and device.type == "cuda"
        and num_processors(device.index or 0) > 0
    )


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


def _check_activation(function: str, activation: str, known: Collection[str]) -> None:
    if activation not in known:
        raise ValueError(f"{function}: {activation!r} is not known; known: {', '.join(known)}")


def kernel_for(
    function: str,
    x_TI: Tensor,
    weight_OI: Tensor,
    epilogue: str,
    residual_TO: Tensor | None,
    batch_invariant: bool,
    *,
    has_bias: bool = False,
) -> Launch | None:
    """The kernel that serves a product; None where that is cuBLAS, or activations go alone."""

    def stores(num_bytes: int) -> bool:
        return residual_TO is None or has_rows_of(num_bytes, residual_TO)

    tokens, (rows, features), gated = x_TI.shape[0], weight_OI.shape, is_gated(epilogue)
    is_taken = takes(x_TI, weight_OI, gated=gated) and stores(RESULT_BYTES)
    if batch_invariant and not is_taken:
        raise ValueError(
            f"{function}: x {list(x_TI.shape)} of {x_TI.dtype} with strides {x_TI.stride()} and "
            f"weight {list(weight_OI.shape)} cannot be multiplied batch-invariantly: that needs a "
            f"Hopper GPU, 16-bit floats, sizes of {16 if gated else 8}, rows of 16 bytes and a "
            f"residual's of {RESULT_BYTES}"
        )
    if tokens == 0 or not is_taken:
        return None
    if batch_invariant:
        return _launch_invariant
    if not is_plain_activation(epilogue):
        if tokens <= MAX_TOKENS:
            return launch
        if linear_mid.pays(tokens, rows, features, gated=gated) and stores(linear_mid.RESULT_BYTES):
            return linear_mid.launch
    processors = num_processors(x_TI.get_device())
    if linear_tall.pays(tokens, rows, features, epilogue, processors, has_bias=has_bias) and stores(
        linear_tall.RESULT_BYTES
    ):
        return linear_tall.launch
    return None


__all__ = [
    "ALWAYS_FUSED_TOKENS",
    "MAX_TOKENS",
    "RESULT_BYTES",
    "SPEC",
    "activated_linear",
    "fitting_tile",
    "fuses_gates",
    "gated_linear",
    "launch",
    "linear",
    "linear_add_",
]
