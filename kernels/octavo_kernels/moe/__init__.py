"""Mixture of experts: the choice of experts, and their products for the tokens that chose them.

Axis suffixes: T tokens, X experts, K chosen experts of a token, D hidden, I intermediate, E gate
and up features (2 I, gates first).

On CUDA the pairs of token and chosen expert are sorted by expert on the device, so that nothing
waits for it and a graph can record it: only experts that were chosen are read. A token's result
depends on neither timing nor the tokens beside it. D must be a multiple of 16 and I of 8; bfloat16
needs Ampere or later. Hopper GPUs have kernels of their own for 16-bit floats: on an H200 they
stream weights at 93 % or more of the memory's speed with 8 to 256 tokens, and reach 370 to 520
TFLOP/s with 4096. On the CPU the reference computes.
"""

import functools

import torch
from torch import Tensor

from octavo_kernels.build import F, I, KernelSpec, L, P
from octavo_kernels.library import DTYPE_CODES, FLOATS, library, stream_of
from octavo_kernels.moe import reference

SPEC = KernelSpec(
    name="moe",
    functions={
        "octavo_moe_route": (P, P, P, P, I, I, I, I, L, I, I, I, I, F),
        "octavo_moe_experts": (P, P, P, P, P, P, P, P, P, P, I, I, I, I, I, I, I, I),
    },
    sources=("kernel.cu", "route.cu", "hopper.cu", "portable.cu"),
)

MAX_EXPERTS = 512
MAX_CHOSEN = 32
MAX_GROUPS = 32
"""What the routing kernel takes."""

SCORES = {"softmax": 0, "sigmoid": 1, "softmax_after": 2}
ACTIVATIONS = {"silu": 1, "gelu": 2, "gelu_tanh": 3, "swiglu_oai": 4}
"""How the kernels are told."""

BFLOAT16_CAPABILITY = (8, 0)
"""The oldest GPUs whose tensor cores know it: Ampere's."""


def route(
    scores_TX: Tensor,
    k: int,
    *,
    renormalize: bool,
    score: str,
    bias_X: Tensor | None = None,
    groups: tuple[int, int] | None = None,
    scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Return each token's k experts, best first, as int32 [T, K], and float32 weights [T, K].

    ``score`` turns the router's scores into weights: "softmax" over all experts, "sigmoid", or
    "softmax_after" over the chosen ones; of equal experts the lower id is chosen first. ``bias_X``
    (float32) counts for the choice only. ``renormalize`` makes a token's weights sum to one, then
    ``scale`` multiplies them. ``groups`` is (number of groups, groups to choose from): groups rank
    by their best expert, or with a bias by the sum of their best two.
    """
    if scores_TX.dim() != 2 or not 1 <= k <= min(MAX_CHOSEN, scores_TX.shape[1]):
        raise ValueError(
            f"route: cannot choose k={k} by scores of shape {list(scores_TX.shape)}; they must "
            f"have two axes, and k be at most the second and at most {MAX_CHOSEN}"
        )
    num_tokens, num_experts = scores_TX.shape
    if score not in SCORES:
        raise ValueError(f"route: score={score!r} is not known; known: {', '.join(SCORES)}")
    if bias_X is not None and (bias_X.shape != (num_experts,) or bias_X.dtype != torch.float32):
        raise ValueError(
            f"route: the bias, {list(bias_X.shape)} of {bias_X.dtype}, must be [{num_experts}] of "
            "torch.float32"
        )
    num_groups, chosen_groups = groups or (1, 1)
    if (
        not 1 <= chosen_groups <= num_groups <= MAX_GROUPS
        or num_experts % num_groups
        or k > chosen_groups * (num_experts // num_groups)
    ):
        raise ValueError(
            f"route: groups={groups} do not divide {num_experts} experts so that k={k} remain to "
            f"choose; at most {MAX_GROUPS} groups are possible"
        )
    if not scores_TX.is_cuda:
        return reference.route(scores_TX, k, renormalize, score, bias_X, groups, scale)
    if scores_TX.dtype not in FLOATS or scores_TX.stride(1) != 1 or num_experts > MAX_EXPERTS:
        raise ValueError(
            f"route: scores {list(scores_TX.shape)} of {scores_TX.dtype} with strides "
            f"{scores_TX.stride()} must be float32, float16 or bfloat16, of contiguous rows and at "
            f"most {MAX_EXPERTS} experts"
        )
    device = scores_TX.device
    ids_TK = torch.empty((num_tokens, k), dtype=torch.int32, device=device)
    weights_TK = torch.empty((num_tokens, k), dtype=torch.float32, device=device)
    if num_tokens:
        library(SPEC, device.index).octavo_moe_route(
            scores_TX.data_ptr(),
            None if bias_X is None else bias_X.data_ptr(),
            ids_TK.data_ptr(),
            weights_TK.data_ptr(),
            DTYPE_CODES[scores_TX.dtype],
            num_tokens,
            num_experts,
            k,
            scores_TX.stride(0),
            SCORES[score],
            renormalize,
            num_groups,
            chosen_groups,
            scale,
            stream_of(device.index),
        )
    return ids_TK, weights_TK


def experts(
    x_TD: Tensor,
    gate_up_XED: Tensor,
    down_XDI: Tensor,
    ids_TK: Tensor,
    weights_TK: Tensor,
    *,
    activation: str,
    bias_XE: Tensor | None = None,
    bias_XD: Tensor | None = None,
    residual_TD: Tensor | None = None,
) -> Tensor:
    """Return the sum over a token's experts of weight * down(activation(gate(x)) * up(x)).

    ``activation`` is "silu", "gelu" (exact), "gelu_tanh", or "swiglu_oai": gate * sigmoid(1.702
    gate) * (up + 1) with the gate at most 7 and up within 7. The biases are added to the products.
    With a residual the sum is added to it in place, and it is returned. Ids that are no expert's
    (-1, say) count for nothing.
    """
    _check_experts(x_TD, gate_up_XED, down_XDI, ids_TK, weights_TK, bias_XE, bias_XD, residual_TD)
    code = ACTIVATIONS.get(activation)
    if code is None:
        raise ValueError(f"experts: {activation!r} is not known; known: {', '.join(ACTIVATIONS)}")
    device = x_TD.device
    if device.type != "cuda":
        return reference.experts(
            x_TD,
            gate_up_XED,
            down_XDI,
            ids_TK,
            weights_TK,
            activation,
            bias_XE,
            bias_XD,
            residual_TD,
        )
    num_tokens, hidden = x_TD.shape
    num_experts, _, intermediate = down_XDI.shape
    out_TD = torch.empty_like(x_TD) if residual_TD is None else residual_TD
    aligned = (x_TD.data_ptr() | out_TD.data_ptr()) % 16 == 0
    lack = lacking(x_TD.dtype, num_experts, hidden, intermediate, device)
    if lack is not None or not aligned:
        raise ValueError(f"experts {lack or 'need rows from multiples of 16 bytes'}")
    if num_tokens == 0:
        return out_TD
    pairs = ids_TK.numel()
    # As in octavo_moe_experts: tiles of at least 8 positions, 4 numbers each.
    order = torch.empty(
        4 + 4 * (pairs // 8 + min(num_experts, pairs)) + 2 * pairs, dtype=torch.int32, device=device
    )
    between = torch.empty(pairs * (intermediate + hidden), dtype=x_TD.dtype, device=device)
    library(SPEC, device.index).octavo_moe_experts(
        out_TD.data_ptr(),
        x_TD.data_ptr(),
        gate_up_XED.data_ptr(),
        down_XDI.data_ptr(),
        None if bias_XE is None else bias_XE.data_ptr(),
        None if bias_XD is None else bias_XD.data_ptr(),
        ids_TK.data_ptr(),
        weights_TK.data_ptr(),
        order.data_ptr(),
        between.data_ptr(),
        DTYPE_CODES[x_TD.dtype],
        code,
        num_tokens,
        ids_TK.shape[1],
        num_experts,
        hidden,
        intermediate,
        residual_TD is not None,
        stream_of(device.index),
    )
    return out_TD


@functools.cache
def lacking(
    dtype: torch.dtype, num_experts: int, hidden: int, intermediate: int, device: torch.device
) -> str | None:
    """What experts of these sizes need that is not there; None: they run on the device."""
    if device.type != "cuda":
        return None
    if dtype not in FLOATS:
        return f"of {dtype} have no kernel; use {', '.join(map(str, FLOATS))}"
    capability = torch.cuda.get_device_capability(device)
    if dtype == torch.bfloat16 and capability < BFLOAT16_CAPABILITY:
        return (
            f"in bfloat16 need compute capability 8.0 or later, and this device has "
            f"{capability[0]}.{capability[1]}; use float16"
        )
    if num_experts > MAX_EXPERTS:
        return f"are {num_experts}, and at most {MAX_EXPERTS} have kernels"
    if hidden % 16 or intermediate % 8:
        return (
            f"of D={hidden} and I={intermediate} have no kernel: D must be a multiple of 16, I of 8"
        )
    return None


def _check_experts(
    x_TD: Tensor,
    gate_up_XED: Tensor,
    down_XDI: Tensor,
    ids_TK: Tensor,
    weights_TK: Tensor,
    bias_XE: Tensor | None,
    bias_XD: Tensor | None,
    residual_TD: Tensor | None,
) -> None:
    if x_TD.dim() != 2 or down_XDI.dim() != 3 or ids_TK.dim() != 2:
        raise ValueError(
            f"experts: x {list(x_TD.shape)}, down {list(down_XDI.shape)} and ids "
            f"{list(ids_TK.shape)} must have 2, 3 and 2 axes"
        )
    tokens, hidden = x_TD.shape
    num_experts, _, size = down_XDI.shape
    chosen, dtype = ids_TK.shape[1], x_TD.dtype
    for name, tensor, shape, expected in (
        ("x", x_TD, (tokens, hidden), dtype),
        ("gate_up", gate_up_XED, (num_experts, 2 * size, hidden), dtype),
        ("down", down_XDI, (num_experts, hidden, size), dtype),
        ("ids", ids_TK, (tokens, chosen), torch.int32),
        ("weights", weights_TK, (tokens, chosen), torch.float32),
        ("bias_XE", bias_XE, (num_experts, 2 * size), dtype),
        ("bias_XD", bias_XD, (num_experts, hidden), dtype),
        ("residual", residual_TD, (tokens, hidden), dtype),
    ):
        if tensor is not None and (
            tensor.shape != shape or tensor.dtype is not expected or not tensor.is_contiguous()
        ):
            raise ValueError(
                f"experts: {name}, {list(tensor.shape)} of {tensor.dtype} with strides "
                f"{tensor.stride()}, must be {list(shape)} of {expected} and contiguous"
            )


__all__ = ["MAX_CHOSEN", "MAX_EXPERTS", "MAX_GROUPS", "SPEC", "experts", "route"]
