"""What routing and the experts' products are: sums in float32."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor


def _clamped_swiglu(gate: Tensor, up: Tensor) -> Tensor:
    gate = gate.clamp(max=7.0)
    return gate * torch.sigmoid(1.702 * gate) * (up.clamp(-7.0, 7.0) + 1.0)


ACTIVATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "silu": lambda gate, up: F.silu(gate) * up,
    "gelu": lambda gate, up: F.gelu(gate) * up,
    "gelu_tanh": lambda gate, up: F.gelu(gate, approximate="tanh") * up,
    "swiglu_oai": _clamped_swiglu,
}


def route(
    scores_TX: Tensor,
    k: int,
    renormalize: bool,
    score: str,
    bias_X: Tensor | None,
    groups: tuple[int, int] | None,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Choose experts and weigh them."""
    values_TX = scores_TX.float()
    if score == "softmax":
        values_TX = values_TX.softmax(dim=-1)
    elif score == "sigmoid":
        values_TX = values_TX.sigmoid()
    ranked_TX = values_TX if bias_X is None else values_TX + bias_X
    if groups is not None and groups[0] > 1:
        ranked_TX = _within_groups(ranked_TX, *groups, best=1 if bias_X is None else 2)
    ids_TK = ranked_TX.argsort(dim=-1, descending=True, stable=True)[:, :k]
    weights_TK = values_TX.gather(-1, ids_TK)
    if score == "softmax_after":
        weights_TK = weights_TK.softmax(dim=-1)
    elif renormalize:
        weights_TK = weights_TK / (weights_TK.sum(dim=-1, keepdim=True) + 1e-20)
    return ids_TK.int(), weights_TK * scale


def _within_groups(ranked_TX: Tensor, groups: int, chosen: int, *, best: int) -> Tensor:
    """Leave only experts of the groups whose best ones rank highest in sum; the rest get -inf."""
    in_groups_TGX = ranked_TX.unflatten(-1, (groups, -1))
    best = min(best, in_groups_TGX.shape[-1])
    group_TG = in_groups_TGX.topk(best, dim=-1).values.sum(dim=-1)
    left_out_TG = group_TG.argsort(dim=-1, descending=True, stable=True)[:, chosen:]
    is_out_TG = torch.zeros_like(group_TG, dtype=torch.bool).scatter(-1, left_out_TG, True)
    within_TGX: Tensor = in_groups_TGX.masked_fill(is_out_TG.unsqueeze(-1), -torch.inf)
    return within_TGX.flatten(-2)


def experts(
    x_TD: Tensor,
    gate_up_XED: Tensor,
    down_XDI: Tensor,
    ids_TK: Tensor,
    weights_TK: Tensor,
    activation: str,
    bias_XE: Tensor | None,
    bias_XD: Tensor | None,
    residual_TD: Tensor | None,
) -> Tensor:
    """Return each token's weighted sum over its experts, one expert after the other."""
    sum_TD = torch.zeros(x_TD.shape, dtype=torch.float32, device=x_TD.device)
    for expert in range(gate_up_XED.shape[0]):
        tokens_P, choices_P = (ids_TK == expert).nonzero(as_tuple=True)
        if len(tokens_P) == 0:
            continue
        gate_up_PE = F.linear(
            x_TD[tokens_P].float(),
            gate_up_XED[expert].float(),
            None if bias_XE is None else bias_XE[expert].float(),
        )
        # What lies between the products has x's dtype, as in the kernel.
        between_PI = ACTIVATIONS[activation](*gate_up_PE.chunk(2, dim=-1)).to(x_TD.dtype)
        out_PD = F.linear(
            between_PI.float(),
            down_XDI[expert].float(),
            None if bias_XD is None else bias_XD[expert].float(),
        )
        sum_TD.index_add_(0, tokens_P, out_PD * weights_TK[tokens_P, choices_P, None])
    if residual_TD is None:
        return sum_TD.to(x_TD.dtype)
    return residual_TD.copy_(residual_TD.float() + sum_TD)
