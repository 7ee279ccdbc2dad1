"""The mixer of Mamba 2: a short convolution, then a state space with a decay for each head.

Axis suffixes: R rows, T tokens, Q tokens of a row, D hidden, C entries of the convolution, K its
taps, I inner entries (heads times P), H heads, P entries of a head, G groups of heads, N entries of
a state.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from octavo.layers.linear import ReplicatedLinear
from octavo.layers.loading import Source
from octavo.layers.recurrent import Tensors, scan
from octavo_registry.cache import CacheSpec, StateTensor
from octavo_registry.model import ModelSpec
from octavo_registry.step import Step


class Mixer(nn.Module):
    """All that a layer does beside its norm; ``name`` is its key in ``Step.states``."""

    def __init__(self, name: str, spec: ModelSpec) -> None:
        super().__init__()
        config, self.name = spec.config, name
        hidden_size = config["hidden_size"]
        self.inner = int(config.get("expand", 2) * hidden_size)
        self.heads, self.head_dim = config["num_heads"], config["head_dim"]
        self.groups, self.state_size = config["n_groups"], config["state_size"]
        entries = self.inner + 2 * self.groups * self.state_size
        self._sizes = [self.inner, entries, self.heads]
        limits = config.get("time_step_limit", (0.0, math.inf))
        self._least_time, self._most_time = map(_number, limits)
        bias = config.get("use_bias", False)
        self.in_proj = ReplicatedLinear(
            f"{name}.in_proj", hidden_size, sum(self._sizes), bias=bias, spec=spec
        )
        self.conv1d = Convolution(
            f"{name}.conv1d",
            entries,
            config.get("conv_kernel", 4),
            bias=config.get("use_conv_bias", True),
            spec=spec,
        )
        self.dt_bias = Numbers(f"{name}.dt_bias", (self.heads,), spec=spec)
        self.A_log = Numbers(f"{name}.A_log", (self.heads,), spec=spec)
        self.D = Numbers(f"{name}.D", (self.heads,), spec=spec)
        self.norm = Numbers(f"{name}.norm.weight", (self.inner,), spec=spec)
        self._eps = float(config.get("layer_norm_epsilon", 1e-5))
        self.out_proj = ReplicatedLinear(
            f"{name}.out_proj", self.inner, hidden_size, bias=bias, spec=spec
        )
        dtype = str(spec.dtype).removeprefix("torch.")
        self.cache_spec = CacheSpec.state(
            tensors=(
                StateTensor((self.conv1d.taps - 1, entries), dtype),
                StateTensor((self.heads, self.head_dim, self.state_size), "float32"),
            ),
            log=(StateTensor((entries,), dtype), StateTensor((self.heads,), dtype)),
        )

    def forward(self, x_TD: Tensor, step: Step) -> Tensor:
        """The layer's result [T, D], without the residual."""
        if step.state is None:
            raise ValueError("a step without states")
        gates_TI, inputs_TC, times_TH = self.in_proj(x_TD).split(self._sizes, dim=1)
        out_TI = scan(
            step.states[self.name], step.state, (inputs_TC, times_TH), self._advance, self._many
        )
        out_TD: Tensor = self.out_proj(self._normed(out_TI, gates_TI).to(x_TD.dtype))
        return out_TD

    def _advance(self, states: Tensors, added: Tensors) -> tuple[Tensors, Tensor]:
        one_R = torch.ones(len(added[0]), dtype=torch.int32, device=added[0].device)
        states, out_RQI = self._many(states, tuple(each[:, None] for each in added), one_R)
        return states, out_RQI[:, 0]

    def _many(self, states: Tensors, added: Tensors, counts_R: Tensor) -> tuple[Tensors, Tensor]:
        """States behind some tokens of each row; with no time in them the others change nothing."""
        (tail_RKC, state_RHPN), (inputs_RQC, times_RQH) = states, added
        window_RKC = torch.cat([tail_RKC, inputs_RQC], dim=1)
        tail_K = torch.arange(tail_RKC.shape[1], device=counts_R.device)
        tail_RK1 = (counts_R[:, None] + tail_K)[:, :, None].long()
        tail_RKC = window_RKC.gather(1, tail_RK1.expand_as(tail_RKC))
        x_RQHP, keys_RQHN, queries_RQHN = self._split(self.conv1d(window_RKC))
        times_RQH = functional.softplus(times_RQH.float() + self.dt_bias.weight.float())
        times_RQH = times_RQH.clamp(self._least_time, self._most_time)
        places_Q = torch.arange(times_RQH.shape[1], device=counts_R.device)
        times_RQH = times_RQH * (places_Q < counts_R[:, None])[:, :, None]
        decays_RHQ = (times_RQH * -torch.exp(self.A_log.weight.float())).cumsum(1).mT
        passed_RHQ = torch.exp(decays_RHQ)
        values_RQHP = x_RQHP * times_RQH[..., None]
        between_RHQQ = decays_RHQ[..., None] - decays_RHQ[:, :, None]
        between_RHQQ = between_RHQQ.masked_fill(
            places_Q[:, None] < places_Q, -torch.inf
        )  # none is seen from before
        scores_RHQQ = torch.einsum("rlhn,rshn->rhls", queries_RQHN, keys_RQHN)
        out_RQHP = torch.einsum(
            "rhls,rshp->rlhp", scores_RHQQ * torch.exp(between_RHQQ), values_RQHP
        )
        before_RQHP = torch.einsum("rlhn,rhpn->rlhp", queries_RQHN, state_RHPN)
        out_RQHP = out_RQHP + before_RQHP * passed_RHQ.mT[..., None]
        out_RQHP = out_RQHP + x_RQHP * self.D.weight.float()[:, None]
        left_RQH1 = torch.exp(decays_RHQ[:, :, -1:] - decays_RHQ).mT[..., None]
        state_RHPN = state_RHPN * passed_RHQ[:, :, -1, None, None] + torch.einsum(
            "rshn,rshp->rhpn", keys_RQHN * left_RQH1, values_RQHP
        )
        return (tail_RKC, state_RHPN), out_RQHP.flatten(2)

    def _split(self, mixed_RQC: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What a head takes in, and the keys and queries of its group, in float32."""
        states = self.groups * self.state_size
        x, keys, queries = mixed_RQC.float().split([self.inner, states, states], dim=2)
        of_heads = self.heads // self.groups
        keys, queries = (
            each.unflatten(2, (self.groups, self.state_size)).repeat_interleave(of_heads, dim=2)
            for each in (keys, queries)
        )
        return x.unflatten(2, (self.heads, self.head_dim)), keys, queries

    def _normed(self, out_TI: Tensor, gates_TI: Tensor) -> Tensor:
        """Gated, then normalised by groups."""
        gated_TGI = (out_TI * functional.silu(gates_TI.float())).unflatten(1, (self.groups, -1))
        mean_TG1 = gated_TGI.square().mean(-1, keepdim=True)
        normed_TI = (gated_TGI * torch.rsqrt(mean_TG1 + self._eps)).flatten(1)
        result_TI: Tensor = self.norm.weight * normed_TI.to(self.norm.weight.dtype)
        return result_TI


class Convolution(nn.Module):
    """Each entry by itself over its last values, and then SiLU."""

    def __init__(self, name: str, entries: int, taps: int, *, bias: bool, spec: ModelSpec) -> None:
        super().__init__()
        self.name, self.taps = name, taps
        weight_C1K = torch.empty(entries, 1, taps, dtype=spec.dtype, device=spec.device)
        self.weight = nn.Parameter(weight_C1K, requires_grad=False)
        self.bias: nn.Parameter | None = None
        if bias:
            bias_C = torch.empty(entries, dtype=spec.dtype, device=spec.device)
            self.bias = nn.Parameter(bias_C, requires_grad=False)

    def forward(self, window_RKC: Tensor) -> Tensor:
        """Results for all places that have all values before them."""
        mixed_RCQ = functional.conv1d(
            window_RKC.mT, self.weight, self.bias, groups=window_RKC.shape[2]
        )
        return functional.silu(mixed_RCQ).mT

    def sources(self) -> Iterator[Source]:
        """See ``LoadsWeights``."""
        for key, parameter in self.named_parameters():
            yield _source(f"{self.name}.{key}", parameter)


class Numbers(nn.Module):
    """A tensor that checkpoints have under a name of its own, without a module."""

    def __init__(self, name: str, shape: tuple[int, ...], *, spec: ModelSpec) -> None:
        super().__init__()
        self.name = name
        empty: Any = torch.empty(shape, dtype=spec.dtype, device=spec.device)
        self.weight = nn.Parameter(empty, requires_grad=False)

    def sources(self) -> Iterator[Source]:
        """See ``LoadsWeights``."""
        yield _source(self.name, self.weight)


def _number(value: Any) -> float:
    """A number of config.json, which has infinities by name."""
    return float(value["__float__"] if isinstance(value, dict) else value)


def _source(name: str, parameter: nn.Parameter) -> Source:
    return Source(
        name=name,
        shape=tuple(parameter.shape),
        part=tuple(slice(0, size) for size in parameter.shape),
        target=parameter.data,
        parameter=parameter,
    )
