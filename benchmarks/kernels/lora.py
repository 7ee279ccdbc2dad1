"""Times the layers of an 8B model with and without LoRA adapters of rank 16 on all linears.

Those of few tokens twice: as one launch a linear, and as `shrink` and `expand_` around the product.

Axis suffixes: T tokens, I inputs, O outputs, P rank rows, Q parts, D hidden.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from benchmarks.kernels.timing import READ_TBPS, graph_time_us
from octavo_kernels.gated_activation import gated_activation
from octavo_kernels.hopper_products import Launch, product
from octavo_kernels.linear import MAX_TOKENS, gated_linear, linear, linear_add_
from octavo_kernels.linear.adapted import Adapters, kernel_for
from octavo_kernels.lora import TokenGroups, expand_, group_tokens, shrink
from octavo_kernels.rms_norm import rms_norm

HIDDEN, KV, INTERMEDIATE = 4096, 1024, 14336
RANK, MAX_ADAPTERS = 16, 32
POOL_ROWS = RANK * MAX_ADAPTERS
DECODE_LAYERS, PREFILL_LAYERS = 8, 2
"""As many as make the L2 useless, and as time allows."""


def draw(*shape: int) -> Tensor:
    """Random values that keep a chain of products near one."""
    return torch.empty(shape, device="cuda", dtype=torch.bfloat16).normal_(std=shape[-1] ** -0.5)


@dataclass(frozen=True, slots=True)
class Linear:
    """A weight and its rank rows."""

    weight_OI: Tensor
    down_PQI: Tensor
    up_PO: Tensor
    part_ends: list[int]

    @classmethod
    def of(cls, features: int, *parts: int) -> Linear:
        """Draw one whose parts have so many outputs."""
        ends = torch.tensor(parts).cumsum(0).tolist()
        down_PQI = draw(POOL_ROWS, len(parts), features)
        return cls(draw(ends[-1], features), down_PQI, draw(POOL_ROWS, ends[-1]) * 0.1, ends)

    def kernel(
        self, x_TI: Tensor, epilogue: str, residual_TO: Tensor | None, groups: TokenGroups
    ) -> Launch:
        """What does it all in one launch."""
        adapters = Adapters(self.down_PQI, self.up_PO, self.part_ends, groups)
        kernel = kernel_for(x_TI, self.weight_OI, epilogue, residual_TO, adapters)
        assert kernel is not None
        return kernel

    def apply(self, x_TI: Tensor, groups: TokenGroups, *, fused: bool) -> Tensor:
        """The product with its adapters'."""
        if fused:
            kernel = self.kernel(x_TI, "store", None, groups)
            return product(kernel, x_TI, self.weight_OI, None, "store")
        sums_STQR = shrink(x_TI, self.down_PQI, groups)
        return expand_(linear(x_TI, self.weight_OI), sums_STQR, self.up_PO, self.part_ends, groups)

    def gated(self, x_TI: Tensor, groups: TokenGroups, *, fused: bool) -> Tensor:
        """The product with its adapters', and gates applied."""
        if not fused:
            return gated_activation(self.apply(x_TI, groups, fused=False), "silu")
        kernel = self.kernel(x_TI, "silu", None, groups)
        return product(kernel, x_TI, self.weight_OI, None, "silu")

    def add_(self, residual_TO: Tensor, x_TI: Tensor, groups: TokenGroups, *, fused: bool) -> None:
        """The product with its adapters', added to a residual."""
        if fused:
            kernel = self.kernel(x_TI, "add", residual_TO, groups)
            kernel(residual_TO, x_TI, self.weight_OI, None, "add")
            return
        sums_STQR = shrink(x_TI, self.down_PQI, groups)
        linear_add_(residual_TO, x_TI, self.weight_OI)
        expand_(residual_TO, sums_STQR, self.up_PO, self.part_ends, groups)


class Layer:
    """A layer's linears; of attention, only the place: a norm stands for it."""

    def __init__(self) -> None:
        self.qkv = Linear.of(HIDDEN, HIDDEN, KV, KV)
        self.o = Linear.of(HIDDEN, HIDDEN)
        self.gate_up = Linear.of(HIDDEN, INTERMEDIATE, INTERMEDIATE)
        self.down = Linear.of(INTERMEDIATE, HIDDEN)
        self.norm_D = torch.ones(HIDDEN, device="cuda", dtype=torch.bfloat16)

    def run(self, residual_TD: Tensor, groups: TokenGroups | None, *, fused: bool) -> None:
        """Without groups, as an engine without adapters does."""
        normed_TD = rms_norm(residual_TD, self.norm_D, 1e-5)
        if groups is None:
            qkv_TO = linear(normed_TD, self.qkv.weight_OI)
        else:
            qkv_TO = self.qkv.apply(normed_TD, groups, fused=fused)
        mixed_TD = rms_norm(qkv_TO[:, :HIDDEN], self.norm_D, 1e-5)
        if groups is None:
            linear_add_(residual_TD, mixed_TD, self.o.weight_OI)
        else:
            self.o.add_(residual_TD, mixed_TD, groups, fused=fused)
        normed_TD = rms_norm(residual_TD, self.norm_D, 1e-5)
        if groups is None:
            gated_TI = gated_linear(normed_TD, self.gate_up.weight_OI, activation="silu")
            linear_add_(residual_TD, gated_TI, self.down.weight_OI)
        else:
            gated_TI = self.gate_up.gated(normed_TD, groups, fused=fused)
            self.down.add_(residual_TD, gated_TI, groups, fused=fused)


def time_layers(
    layers: list[Layer], tokens: int, adapters: int | None, *, mixed: bool, fused: bool
) -> float:
    """Microseconds a layer; tokens of adapters stand by turns or in runs. None: no LoRA at all."""
    start_TD = draw(tokens, HIDDEN)
    residual_TD = torch.empty_like(start_TD)
    numbers_T = torch.arange(tokens, device="cuda", dtype=torch.int32)
    if adapters:
        choice_T = numbers_T % adapters if mixed else numbers_T * adapters // tokens
        first_T, rank_T = choice_T * RANK, torch.full_like(numbers_T, RANK)
    else:
        first_T, rank_T = torch.full_like(numbers_T, -1), torch.zeros_like(numbers_T)
    torch.cuda.synchronize()

    def run() -> None:
        groups = None
        if adapters is not None:
            groups = group_tokens(first_T, rank_T, pool_rows=POOL_ROWS, max_rank=RANK, settled=True)
        residual_TD.copy_(start_TD)  # the ordinary launch that settles the groups
        for layer in layers:
            layer.run(residual_TD, groups, fused=fused)

    return graph_time_us([run]) / len(layers)


def time_linears(layers: list[Layer], tokens: int, adapters: int) -> None:
    """Print what each linear takes without and with adapters."""
    choice_T = torch.arange(tokens, device="cuda", dtype=torch.int32) % adapters
    groups = group_tokens(
        choice_T * RANK, torch.full_like(choice_T, RANK), pool_rows=POOL_ROWS, max_rank=RANK
    )
    for name in ("qkv", "o", "gate_up", "down"):
        linears: list[Linear] = [getattr(layer, name) for layer in layers]
        x_TI = draw(tokens, linears[0].weight_OI.shape[1])
        torch.cuda.synchronize()
        base = graph_time_us([partial(linear, x_TI, each.weight_OI) for each in linears])
        apart, one = (
            graph_time_us([partial(each.apply, x_TI, groups, fused=fused) for each in linears])
            for fused in (False, True)
        )
        print(
            f"  {name:>8}, {adapters:2} adapters: {base:7.2f} us, with them {apart:7.2f} us, "
            f"in one launch {one:7.2f} us"
        )


def main() -> None:
    """Print the tables."""
    layers = [Layer() for _ in range(DECODE_LAYERS)]
    adapter_bytes = 2 * sum(
        RANK * (each.down_PQI[0].numel() + each.up_PO.shape[1])
        for each in (layers[0].qkv, layers[0].o, layers[0].gate_up, layers[0].down)
    )
    for tokens, mixed in ((32, True), (1024, False), (8192, False)):
        used = layers if tokens <= MAX_ADAPTERS else layers[:PREFILL_LAYERS]
        base = time_layers(used, tokens, None, mixed=mixed, fused=False)
        print(f"layer, {tokens} tokens: {base:.1f} us without adapters")
        for adapters in (0, 1, 8, 32):
            bound = adapters * adapter_bytes / READ_TBPS / 1e6 / base
            for fused in (False, True) if tokens <= MAX_TOKENS else (False,):
                took = time_layers(used, tokens, adapters, mixed=mixed, fused=fused)
                print(
                    f"  {adapters:2} adapters{' in one launch' if fused else '':14}: "
                    f"{took:8.1f} us, {took / base - 1:+6.1%}; their bytes alone {bound:+6.1%}",
                    flush=True,
                )
    for adapters in (1, 8, 32):
        time_linears(layers, 32, adapters)


if __name__ == "__main__":
    main()
