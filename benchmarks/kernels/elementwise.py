"""Norms, activations, cache writes, block moves, step state.

Run: python -m benchmarks.kernels.elementwise [words that names must have].
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.kernels.timing import READ_TBPS, graph_time_us
from octavo_kernels.block_moves import copy_blocks_, swap_blocks_
from octavo_kernels.gated_activation import gated_activation, quick_gelu
from octavo_kernels.gated_activation.reference import quick_gelu as torch_quick_gelu
from octavo_kernels.layer_norm import layer_norm
from octavo_kernels.rms_norm import add_rms_norm, rms_norm
from octavo_kernels.step_state import StepInputs, accept_, scatter_words_, step_inputs
from octavo_kernels.store_kv import store_kv, store_kv_paged

Call = Callable[[], object]
DEVICE = torch.device("cuda")
L2_BYTES = 60e6
ENCODER_PATCHES = 27380
"""Patches of five images of 1024 x 1024 in Qwen2-VL's encoder, which takes them at once."""


@dataclass(slots=True)
class Case:
    """What is timed: each call of ``make`` gives a call on buffers of its own."""

    name: str
    num_bytes: float
    make: Callable[[], Call]
    by_torch: Callable[[], Call] | None = None


def main(words: list[str]) -> None:
    """Print the tables."""
    print(f"{'us':>8} {'TB/s':>6} {'%':>4} {'torch us':>9} {'host us':>8}  op")
    for cases in (norms, activations, cache_writes, state_changes, block_moves):
        for case in cases():
            if all(word in case.name for word in words):
                report(case)


def report(case: Case) -> None:
    """One line: time, rate against a copy's, torch's time, and what a call costs the host."""
    sets = max(1, min(64, int(2 * L2_BYTES / case.num_bytes) + 1))
    us = graph_time_us([case.make() for _ in range(sets)], rounds=10)
    theirs = " " * 9
    if case.by_torch is not None:
        theirs = f"{graph_time_us([case.by_torch() for _ in range(sets)], rounds=10):9.2f}"
    rate = case.num_bytes / us / 1e6
    host = host_us(case.make())
    print(
        f"{us:8.2f} {rate:6.3f} {100 * rate / READ_TBPS:4.0f} {theirs} {host:8.2f}  {case.name}",
        flush=True,
    )


def host_us(call: Call) -> float:
    """What a call costs the host while the queue of launches is not full."""
    times = []
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(50):
            call()
        times.append((time.perf_counter() - start) * 2e4)
    return min(times)


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, device=DEVICE, dtype=torch.bfloat16)


def norms() -> Iterator[Case]:
    for size in (1024, 2048, 4096, 8192):
        weight_D = randn(size)

        def plain(num_tokens: int, weight_D: Tensor = weight_D) -> Call:
            return partial(rms_norm, randn(num_tokens, weight_D.numel()), weight_D, 1e-5)

        def summed(num_tokens: int, weight_D: Tensor = weight_D) -> Call:
            x_TD, residual_TD = randn(2, num_tokens, weight_D.numel()).unbind(0)
            return partial(add_rms_norm, x_TD, residual_TD, weight_D, 1e-5)

        def by_torch(num_tokens: int, weight_D: Tensor = weight_D) -> Call:
            x_TD = randn(num_tokens, weight_D.numel())
            return partial(F.rms_norm, x_TD, (weight_D.numel(),), weight_D, 1e-5)

        for count in (1, 32, 256, 2048, 8192):
            num_bytes = 2.0 * count * size
            name = f"rms_norm {count} x {size}"
            yield Case(name, 2 * num_bytes, partial(plain, count), partial(by_torch, count))
            yield Case(f"add_{name}", 4 * num_bytes, partial(summed, count))
        yield Case(f"torch's copy 8192 x {size}", 32768.0 * size, partial(copy, size))

    for count, size in ((1, 768), (5476, 1280), (ENCODER_PATCHES, 1280), (ENCODER_PATCHES, 1152)):
        parameters = randn(2, size).unbind(0)

        def moved(num_tokens: int, parameters: tuple[Tensor, ...] = parameters) -> Call:
            x_TD = randn(num_tokens, parameters[0].numel())
            return partial(layer_norm, x_TD, *parameters, 1e-6)

        def moved_by_torch(num_tokens: int, parameters: tuple[Tensor, ...] = parameters) -> Call:
            x_TD = randn(num_tokens, parameters[0].numel())
            return partial(F.layer_norm, x_TD, x_TD.shape[1:], *parameters, 1e-6)

        calls = partial(moved, count), partial(moved_by_torch, count)
        yield Case(f"layer_norm {count} x {size}", 4.0 * count * size, *calls)


def copy(size: int) -> Call:
    source, target = randn(2, 8192, size).unbind(0)
    return partial(target.copy_, source)


def activations() -> Iterator[Case]:
    def ours(num_tokens: int, size: int) -> Call:
        return partial(gated_activation, randn(num_tokens, 2 * size), "silu")

    def by_torch(num_tokens: int, size: int) -> Call:
        gate, up = randn(num_tokens, 2 * size).chunk(2, dim=1)
        return lambda: F.silu(gate) * up

    for size in (3072, 14336):
        for count in (1, 64, 1024, 8192):
            yield Case(
                f"gated_activation {count} x {size}",
                6.0 * count * size,
                partial(ours, count, size),
                partial(by_torch, count, size),
            )
    shape = (5476, 5120)  # an image of 1024 x 1024 in Qwen2-VL's encoder
    yield Case(
        "quick_gelu {} x {}".format(*shape),
        4.0 * math.prod(shape),
        lambda: partial(quick_gelu, randn(*shape)),
        lambda: partial(torch_quick_gelu, randn(*shape)),
    )


def cache_writes() -> Iterator[Case]:
    def ours(num_tokens: int, heads: tuple[int, int], norm: bool, paged: bool) -> Call:
        num_blocks = num_tokens // 16 + 4
        qkv = randn(num_tokens, (heads[0] + 2 * heads[1]) * 128).unflatten(1, (-1, 128))
        cos_TF, sin_TF = randn(num_tokens, 128).chunk(2, dim=1)
        weight_D = randn(128) if norm else None
        keys, values = randn(2, num_blocks, heads[1], 16, 128).unbind(0)
        if paged:
            keys, values = keys.view(num_blocks, heads[1], 16, 16, 8), values.mT.contiguous()
        return partial(
            store_kv_paged if paged else store_kv,
            *qkv.split([heads[0], heads[1], heads[1]], dim=1),
            *(keys, values, torch.arange(num_tokens, device=DEVICE) + 5),
            cos_TF=cos_TF,
            sin_TF=sin_TF,
            q_norm_D=weight_D,
            k_norm_D=weight_D,
        )

    for heads, norm in (((32, 8), False), ((16, 8), True)):
        for count in (1, 64, 256, 2048, 8192):
            for paged in (False, True):
                yield Case(
                    f"store_kv {count} x {heads} norm={norm} paged={paged}",
                    2.0 * count * 256 * (heads[0] + 2 * heads[1]),
                    partial(ours, count, heads, norm, paged),
                )


def state_changes() -> Iterator[Case]:
    def tensors(rows: int, tokens_per_row: int) -> list[Tensor]:
        slots_R = torch.randperm(rows, device=DEVICE).int()
        starts_R1 = torch.arange(rows + 1, device=DEVICE).int() * tokens_per_row
        tokens_SL = torch.ones(rows, 16384, dtype=torch.int32, device=DEVICE)
        return [slots_R, starts_R1, torch.full_like(slots_R, 100), tokens_SL]

    def inputs(rows: int, tokens_per_row: int) -> Call:
        num_tokens = rows * tokens_per_row
        table_SB = torch.ones(rows, 1024, dtype=torch.int32, device=DEVICE)
        return partial(
            step_inputs,
            *(*tensors(rows, tokens_per_row), [table_SB]),
            num_tokens=num_tokens,
            block_tokens=16,
            out=StepInputs.empty(num_tokens, rows, 1, DEVICE),
        )

    def accept(rows: int) -> Call:
        slots_R, starts_R1, counts_S, tokens_SL = tensors(rows, 1)
        return partial(
            accept_, slots_R, starts_R1, counts_S, slots_R, slots_R, counts_S.clone(), tokens_SL
        )

    def scatter(count: int) -> Call:
        indices = torch.randperm(count, device=DEVICE).int()
        return partial(scatter_words_, indices.clone(), indices, indices)

    for rows, tokens_per_row in ((1, 1), (256, 1), (1024, 1), (1, 8192), (16, 512)):
        make = partial(inputs, rows, tokens_per_row)
        yield Case(f"step_inputs {rows} rows of {tokens_per_row}", 5e6, make)
    for rows in (1, 256, 1024):
        yield Case(f"accept_ {rows} rows", 5e6, partial(accept, rows))
        yield Case(f"scatter_words_ {rows}", 5e6, partial(scatter, rows))


def block_moves() -> Iterator[Case]:
    """Within the pages and both ways over the bus; the copy engine's rate for comparison."""
    lanes, block_bytes = 32, 65536
    pages = torch.zeros((lanes, 2000, block_bytes), dtype=torch.uint8, device=DEVICE)
    swap = torch.zeros((lanes, 64, block_bytes), dtype=torch.uint8, pin_memory=True)
    order = torch.randperm(2000, device=DEVICE)
    for count in (1, 4, 64):
        moves = order[:count].clone(), order[-count:].clone()
        out = moves[0], torch.arange(count, device=DEVICE)
        size, name = float(lanes * count * block_bytes), f"{count} blocks of 2 MiB"
        yield Case(f"copy_blocks_ {name}", 2 * size, partial(partial, copy_blocks_, pages, *moves))
        yield Case(f"swap out {name}", size, partial(partial, swap_blocks_, pages, swap, *out))
        yield Case(f"swap in {name}", size, partial(partial, swap_blocks_, swap, pages, *out[::-1]))
    host, device = swap[0], pages[0, :64]
    size = float(host.numel())
    copy_out = partial(partial, host.copy_, device, non_blocking=True)
    copy_in = partial(partial, device.copy_, host, non_blocking=True)
    yield Case("copy engine out, 4 MiB at once", size, copy_out)
    yield Case("copy engine in, 4 MiB at once", size, copy_in)


if __name__ == "__main__":
    main(sys.argv[1:])
