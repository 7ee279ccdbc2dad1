from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from kernel_tensors import assert_near, draw, poison
from octavo_kernels import lora
from octavo_kernels.hopper_products import product
from octavo_kernels.linear import adapted, gated_linear, linear, linear_add_, reference
from octavo_kernels.linear.adapted import Adapters
from octavo_kernels.lora import SumRooms, TokenGroups, group_tokens

SHAPES = [  # features, parts, epilogue, ranks
    (64, (64,), "store", (16, 4)),
    (4096, (4096, 1024, 1024), "store", (16, 8, 64)),
    (1000, (528, 264), "store", (1, 7, 15, 16, 17, 33)),
    (2048, (80, 64, 200), "add", (5, 80, 256)),
    (4096, (4096,), "add", (16,) * 40),
    (14336, (512,), "add", (256, 3, 128)),
    (72, (96, 96), "silu", (16, 2)),
    (1096, (1032, 1032), "gelu", (16, 9, 40)),
    (2048, (2064,), "gelu_tanh", (32, 16)),
    (512, (16400,), "store", (16, 24)),
    (512, (8200, 8200), "silu", (16,) * 9),
    (4096, (14336, 14336), "silu", (16,) * 8),
    (1024, (14336, 14336), "silu", (40, 16)),
    (64, (12624, 12808), "store", (16, 4)),
    (64, (9064, 9064), "gelu", (48,) * 12),
    (192, (20488,), "add", (33, 8, 64)),
    (2560, (2064, 2064), "silu", (16, 2)),  # ten splits
    (768, (8752,), "silu", (16, 16)),
    (3072, (1024,), "store", (16,) * 24),  # twelve splits, of which teams leave three
    (384, (64, 80, 128, 64, 96, 200), "add", (4,) * 64),
]


@dataclass(frozen=True)
class Layer:
    """A weight, and the rank rows of runs that stand two rows apart."""

    weight_OI: Tensor
    bias_O: Tensor | None
    down_PQI: Tensor
    up_PO: Tensor
    part_ends: list[int]
    runs: list[tuple[int, int]]
    epilogue: str

    @classmethod
    def of(
        cls,
        features: int,
        parts: Sequence[int],
        epilogue: str,
        ranks: Sequence[int],
        *,
        dtype: torch.dtype = torch.bfloat16,
        bias: bool = False,
    ) -> Layer:
        ends = torch.tensor(parts).cumsum(0).tolist()
        firsts = [2 * i + sum(ranks[:i]) for i in range(len(ranks))]
        pool_rows = 2 * len(ranks) + sum(ranks)
        down_PQI = draw(pool_rows, len(parts), features, dtype=dtype)
        up_PO = draw(pool_rows, ends[-1], dtype=dtype)
        for first, rank in zip(firsts, ranks, strict=True):  # what is nobody's counts for nothing
            down_PQI[first + rank : first + rank + 2] = torch.nan
            up_PO[first + rank : first + rank + 2] = torch.nan
        return cls(
            draw(ends[-1], features, dtype=dtype),
            draw(ends[-1], dtype=dtype) if bias else None,
            down_PQI,
            up_PO,
            ends,
            [*zip(firsts, ranks, strict=True), (-1, 0)],
            epilogue,
        )

    def groups(self, chosen: Sequence[int], *, settled: bool = False) -> TokenGroups:
        """Of tokens that have chosen a run each, by turns; -1 is none."""
        table = torch.tensor([self.runs[i] for i in chosen], dtype=torch.int32, device="cuda")
        return self.groups_of(*table.T.contiguous(), settled=settled)

    def groups_of(self, first_T: Tensor, rank_T: Tensor, *, settled: bool = False) -> TokenGroups:
        largest = max(rank for _, rank in self.runs)
        pool_rows = self.up_PO.shape[0]
        return group_tokens(first_T, rank_T, pool_rows=pool_rows, max_rank=largest, settled=settled)

    def adapters(self, groups: TokenGroups) -> Adapters:
        return Adapters(self.down_PQI, self.up_PO, self.part_ends, groups)

    def residual(self, tokens: int) -> Tensor | None:
        rows = self.part_ends[-1]
        return draw(tokens, rows, dtype=self.up_PO.dtype) if self.epilogue == "add" else None

    def run(self, x_TI: Tensor, residual_TO: Tensor | None, groups: TokenGroups) -> Tensor:
        """In one launch; the residual is left as it is."""
        kernel = adapted.kernel_for(
            x_TI, self.weight_OI, self.epilogue, residual_TO, self.adapters(groups)
        )
        assert kernel is not None
        if residual_TO is None:
            return product(kernel, x_TI, self.weight_OI, self.bias_O, self.epilogue)
        out_TO = residual_TO.clone()
        kernel(out_TO, x_TI, self.weight_OI, self.bias_O, "add")
        return out_TO

    def without(self, x_TI: Tensor, residual_TO: Tensor | None) -> Tensor:
        """Without any adapter."""
        if residual_TO is not None:
            return linear_add_(residual_TO.clone(), x_TI, self.weight_OI, self.bias_O)
        if self.epilogue == "store":
            return linear(x_TI, self.weight_OI, self.bias_O)
        return gated_linear(x_TI, self.weight_OI, activation=self.epilogue, bias_E=self.bias_O)

    def expected(self, x_TI: Tensor, residual_TO: Tensor | None, groups: TokenGroups) -> Tensor:
        """Sums of `down` rounded once, all else in float32."""
        runs = lora.reference.runs_of(groups.first_T, groups.rank_T)
        sums_STQR = lora.reference.shrink(x_TI, self.down_PQI, runs, groups.max_rank)
        low_STQR = sums_STQR.to(x_TI.dtype).float()
        bias_O = None if self.bias_O is None else self.bias_O.float()
        out_TO = torch.nn.functional.linear(x_TI.float(), self.weight_OI.float(), bias_O)
        lora.reference.expand_(out_TO, low_STQR, self.up_PO, self.part_ends, runs)
        if residual_TO is not None:
            out_TO += residual_TO.float()
        elif self.epilogue != "store":
            gate_TO, up_TO = out_TO.chunk(2, dim=-1)
            out_TO = reference.ACTIVATIONS[self.epilogue](gate_TO) * up_TO
        return out_TO.to(x_TI.dtype)


def mixes(num_runs: int, tokens: int) -> list[list[int]]:
    """None, one for all, one amid none, all by turns, in runs, and many of one beside few."""
    by_turns = [i % num_runs for i in range(tokens)]
    return [
        [-1] * tokens,
        [num_runs - 1] * tokens,
        [0 if i == tokens // 2 else -1 for i in range(tokens)],
        by_turns,
        sorted(i % (num_runs + 1) - 1 for i in range(tokens)),
        [0 if i % 8 else num_runs - 1 for i in range(tokens)],
    ]


def groups_nowhere(
    tokens: int, pool_rows: int, max_rank: int, *, batch_invariant: bool = False
) -> TokenGroups:
    """What no kernel can be launched with: it has shapes alone."""
    token_T = torch.empty(tokens, dtype=torch.int32, device="meta")
    return TokenGroups(
        first_T=token_T,
        rank_T=token_T,
        pool_rows=pool_rows,
        max_rank=max_rank,
        batch_invariant=batch_invariant,
        settled=False,
        tile_tokens=16,
        max_tiles=8,
        order=token_T,
    )


def test_without_a_gpu_that_does_it_nothing_is_taken() -> None:
    ones_T = torch.ones(2, dtype=torch.int32)
    groups = group_tokens(ones_T, ones_T, pool_rows=4)
    adapters = Adapters(torch.ones(4, 1, 64), torch.ones(4, 64), [64], groups)
    assert (
        adapted.kernel_for(torch.ones(2, 64), torch.ones(64, 64), "store", None, adapters) is None
    )


@pytest.mark.parametrize(
    ("tokens", "ends", "epilogue", "takes"),
    [
        (64, [256], "store", True),
        (65, [256], "store", False),
        (1, [128, 192, 256], "store", True),
        (8, [128, 176, 256], "store", False),  # a part of 48 columns
        (8, [136, 256], "store", False),
        (8, [128, 192], "store", False),
        (8, [256], "add", True),
        (8, [256], "silu", True),
        (8, [128, 256], "silu", True),
        (8, [64, 256], "silu", False),
    ],
)
def test_few_tokens_and_parts_of_some_width_are_taken(
    tokens: int, ends: list[int], epilogue: str, takes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapted, "takes", lambda *_, **__: True)
    x_TI, weight_OI = (
        torch.empty(rows, 64, dtype=torch.bfloat16, device="meta") for rows in (tokens, 256)
    )
    down_PQI = torch.empty(32, len(ends), 64, dtype=torch.bfloat16, device="meta")
    up_PO = torch.empty(32, 256, dtype=torch.bfloat16, device="meta")
    residual_TO = torch.empty_like(up_PO[:1].expand(tokens, 256)) if epilogue == "add" else None
    for batch_invariant in (False, True):
        groups = groups_nowhere(tokens, 32, 16, batch_invariant=batch_invariant)
        adapters = Adapters(down_PQI, up_PO, ends, groups)
        kernel = adapted.kernel_for(x_TI, weight_OI, epilogue, residual_TO, adapters)
        assert (kernel is not None) is (takes and not batch_invariant)


def test_no_more_ranks_are_taken_than_the_kernel_can_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(adapted, "takes", lambda *_, **__: True)
    x_TI, weight_OI = (torch.empty(64, 4096, dtype=torch.bfloat16, device="meta") for _ in "xw")
    for max_rank, takes in ((16384, True), (16400, False)):
        down_PQI = torch.empty(max_rank, 1, 4096, dtype=torch.bfloat16, device="meta")
        up_PO = torch.empty(max_rank, 64, dtype=torch.bfloat16, device="meta")
        adapters = Adapters(down_PQI, up_PO, [64], groups_nowhere(64, max_rank, max_rank))
        kernel = adapted.kernel_for(x_TI, weight_OI, "store", None, adapters)
        assert (kernel is not None) is takes


def test_rooms_are_taken_in_turn_and_the_one_before_is_swept() -> None:
    rooms, cpu = SumRooms(), torch.device("cpu")
    swept = []
    for turn, words in enumerate((64, 16, 32, 64)):
        room, stale = rooms.take(words, cpu)
        assert room.shape == (words,)
        assert not room.any(), "who comes finds zeros"
        swept.append(stale.numel())
        stale.zero_()
        room.fill_(turn + 1)
    assert swept == [0, 64, 16, 32]
    larger, stale = rooms.take(128, cpu)
    assert (larger.numel(), stale.numel(), bool(larger.any())) == (128, 0, False)


def test_rooms_are_no_more_than_what_plans_count() -> None:
    for features in (8, 512, 1000, 4096, 14336, 53248):
        rooms = SumRooms()
        words = adapted.num_splits(features, rows=1) * 64 * 3 * 32
        room, _ = rooms.take(words, torch.device("cpu"))
        assert room.untyped_storage().nbytes() == adapted.rooms_bytes(8192, features, 3, 20)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("features", "parts", "epilogue", "ranks"), SHAPES)
def test_one_launch_computes_the_reference(
    features: int,
    parts: tuple[int, ...],
    epilogue: str,
    ranks: tuple[int, ...],
    dtype: torch.dtype,
) -> None:
    for bias in (False, True):
        layer = Layer.of(features, parts, epilogue, ranks, dtype=dtype, bias=bias)
        for tokens in (1, 3, 8, 9, 16, 21, 32, 33, 64):
            x_TI = draw(tokens, features + 8, dtype=dtype)[:, :features]
            residual_TO = layer.residual(tokens)
            plain_TO = layer.without(x_TI, residual_TO)
            for chosen in mixes(len(ranks), tokens):
                groups = layer.groups(chosen)
                poison(4_000_000, dtype=dtype)  # the allocator hands it to the call
                out_TO = layer.run(x_TI, residual_TO, groups)
                assert_near(out_TO, layer.expected(x_TI, residual_TO, groups))
                # Others' adapters make no difference to those that have none, unless the weight
                # is cut up in another way without any.
                none_T = groups.rank_T == 0
                if sum(parts) < 16384:
                    assert torch.equal(out_TO[none_T], plain_TO[none_T])
                elif none_T.any():
                    assert_near(out_TO[none_T], plain_TO[none_T])


@pytest.mark.gpu
def test_an_adapter_that_is_broken_breaks_its_own_tokens_only() -> None:
    for epilogue, parts in (("store", (256, 64)), ("silu", (128, 128))):
        layer = Layer.of(512, parts, epilogue, (16, 20))
        x_TI = draw(24, 512)
        before_TO = layer.run(x_TI, None, layer.groups([0, 1, -1] * 8))
        layer.down_PQI[:16] = torch.nan
        out_TO = layer.run(x_TI, None, layer.groups([0, 1, -1] * 8))
        others = [i for i in range(24) if i % 3 > 0]
        assert torch.equal(out_TO[others], before_TO[others])
        assert bool(out_TO[::3].isnan().any(1).all())


@pytest.mark.gpu
def test_runs_outside_of_the_pool_add_nothing() -> None:
    layer = Layer.of(256, (128,), "store", (12,))
    table = [(8, 12), (14, 4), (-3, 4), (2**30, 2**30), (0, -1)]
    first_T, rank_T = torch.tensor(table, dtype=torch.int32, device="cuda").T.contiguous()
    x_TI = draw(5, 256)
    assert torch.equal(
        layer.run(x_TI, None, layer.groups_of(first_T, rank_T)), layer.without(x_TI, None)
    )


@pytest.mark.gpu
def test_a_residuals_rows_may_stand_apart_and_nothing_beside_them_is_touched() -> None:
    layer = Layer.of(256, (128, 72), "add", (8, 16))
    for tokens in (7, 40):
        groups = layer.groups([i % 3 - 1 for i in range(tokens)])
        x_TI, residual_TO = draw(tokens, 256), draw(tokens, 200)
        room_TO = torch.full((tokens + 2, 216), 7.0, dtype=torch.bfloat16, device="cuda")
        out_TO = room_TO[1:-1, 2:202]
        out_TO.copy_(residual_TO)
        kernel = adapted.kernel_for(x_TI, layer.weight_OI, "add", out_TO, layer.adapters(groups))
        assert kernel is not None
        kernel(out_TO, x_TI, layer.weight_OI, None, "add")
        assert torch.equal(out_TO, layer.run(x_TI, residual_TO, groups))
        out_TO.fill_(7.0)
        assert bool((room_TO == 7.0).all())


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 13, 32, 64])
def test_results_are_the_same_each_time(tokens: int) -> None:
    for features, parts, epilogue, ranks in SHAPES[1::2]:
        layer = Layer.of(features, parts, epilogue, ranks)
        x_TI, residual_TO = draw(tokens, features), layer.residual(tokens)
        groups = layer.groups([i % len(ranks) for i in range(tokens)])
        first_TO = layer.run(x_TI, residual_TO, groups)
        assert all(torch.equal(layer.run(x_TI, residual_TO, groups), first_TO) for _ in range(100))


@pytest.mark.gpu
@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("tokens", [8, 32, 64])
def test_a_recorded_chain_of_layers_follows_other_adapters(tokens: int, settled: bool) -> None:
    ranks = (16, 64, 1, 130, 8)
    shapes = [
        ((1024, 256, 256), "store", 1024),
        ((1024,), "add", 1536),
        ((2048, 2048), "silu", 1024),
        ((1024,), "add", 2048),
    ]
    chain = [Layer.of(features, parts, epilogue, ranks) for parts, epilogue, features in shapes]
    start_TD = draw(tokens, 1024)
    first_T = torch.full((tokens,), -1, dtype=torch.int32, device="cuda")
    rank_T = torch.zeros_like(first_T)

    def run() -> Tensor:
        groups = chain[0].groups_of(first_T, rank_T, settled=settled)
        residual_TD = start_TD.clone()  # an ordinary launch
        for _ in range(3):
            x_TI = residual_TD.tanh()
            for layer in chain:
                adds = layer.epilogue == "add"
                x_TI = layer.run(x_TI, residual_TD if adds else None, groups)
                if adds:
                    residual_TD = x_TI.mul_(0.5)
                    x_TI = residual_TD.tanh()
        return residual_TD

    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out_TO = run()
    for chosen in ([0], [-1], [3, 1, -1], range(5), [4, 0]):
        table = [chain[0].runs[chosen[i % len(chosen)]] for i in range(tokens)]
        now = torch.tensor(table, dtype=torch.int32, device="cuda").T
        first_T.copy_(now[0])
        rank_T.copy_(now[1])
        start_TD.normal_()
        results = []
        for _ in range(20):
            out_TO.fill_(torch.nan)
            graph.replay()
            results.append(out_TO.clone())
        assert all(torch.equal(result_TO, run()) for result_TO in results)
        assert bool(results[0].isfinite().all())


@pytest.mark.gpu
@pytest.mark.parametrize("num_runs", [1, 5])
@pytest.mark.parametrize("tokens", [16, 64])
def test_sums_of_splits_without_inputs_are_not_swept_away(tokens: int, num_runs: int) -> None:
    """Of 4128 inputs the last split has none; nothing stands between the launches."""
    wide = Layer.of(1024, (4128,), "store", (64,) * num_runs)
    narrow = Layer.of(4128, (1024,), "store", (64,) * num_runs)
    x_TI = draw(tokens, 1024)
    chosen = [i % num_runs for i in range(tokens)]

    def run(settled: bool) -> list[Tensor]:
        groups = wide.groups(chosen, settled=settled)
        x_TI.clone()  # an ordinary launch
        return [narrow.run(wide.run(x_TI, None, groups), None, groups) for _ in range(50)]

    expected_TO = run(False)[0]
    assert all(torch.equal(result_TO, expected_TO) for result_TO in run(True))
