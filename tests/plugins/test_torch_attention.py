from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from octavo.testing.step_building import StepBuilder
from octavo_plugins.attention.scoring import Scoring
from octavo_plugins.attention.torch.backend import TorchAttention
from octavo_plugins.attention.torch.padded import PaddedBatch
from octavo_plugins.attention.torch.pieces import Pieces
from octavo_plugins.attention.torch.ragged import RaggedBatch
from octavo_registry.attention import AttentionBackend
from octavo_registry.cache import CacheSpec, StateTensor
from octavo_registry.errors import PluginError

KEYWORDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 7},
    "softcap": {"softcap": 2.0},
    "sinks": {"sinks": True},
    "alibi": {"alibi": True},
    "all": {"window": 5, "softcap": 3.0, "sinks": True, "alibi": True},
}
SHAPES = {"mha": (4, 4), "gqa": (6, 2), "mqa": (3, 1)}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def naive(
    q_HD: Tensor,
    k_CKD: Tensor,
    v_CKD: Tensor,
    position: int,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    alibi: Tensor | None = None,
    causal: bool = True,
) -> Tensor:
    """One query, one head at a time."""
    last = position if causal else len(k_CKD) - 1
    first = 0 if window is None else max(position - window + 1, 0)
    heads, kv_heads = q_HD.shape[0], k_CKD.shape[1]
    out = []
    for head in range(heads):
        keys = k_CKD[first : last + 1, head * kv_heads // heads].double()
        values = v_CKD[first : last + 1, head * kv_heads // heads].double()
        scores = keys @ q_HD[head].double() * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        if alibi is not None:
            scores = scores + alibi[head] * (
                torch.arange(first, last + 1, device=alibi.device) - position
            )
        if sinks is not None:
            scores = torch.cat((scores, sinks[head : head + 1].double()))
        out.append(scores.softmax(0)[: len(values)] @ values)
    return torch.stack(out)


class History:
    """Random keys and values per row, fed to the backend step by step and kept for ``naive``."""

    def __init__(
        self,
        heads: int,
        kv_heads: int,
        *,
        head_dim: int = 8,
        dtype: torch.dtype = torch.float32,
        cache_dtype: str | None = None,
        window: int | None = None,
        device: str = "cpu",
        **builder: Any,
    ) -> None:
        torch.manual_seed(0)
        self.device = device
        self.heads, self.kv_heads, self.head_dim, self.dtype = heads, kv_heads, head_dim, dtype
        spec = CacheSpec(
            kind="full" if window is None else "window",
            kv_heads=kv_heads,
            key_dim=head_dim,
            value_dim=head_dim,
            dtype=cache_dtype or str(dtype).removeprefix("torch."),
            window=window,
        )
        self.backend = TorchAttention()
        assert isinstance(self.backend, AttentionBackend)
        self.builder = StepBuilder({"layer": spec}, self.backend, device=device, **builder)
        self.keywords: dict[str, Any] = {"scale": 0.7}
        self.kv: list[list[Tensor]] = []

    def use(self, *, sinks: bool = False, alibi: bool = False, **keywords: Any) -> None:
        if sinks:
            keywords["sinks"] = torch.randn(self.heads, device=self.device)
        if alibi:
            keywords["alibi"] = torch.rand(self.heads, device=self.device)
        self.keywords.update(keywords)

    def random(self, num_tokens: int, heads: int) -> Tensor:
        return torch.randn(num_tokens, heads, self.head_dim).to(self.device, self.dtype)

    def run(self, rows: list[tuple[int, int]], **step: Any) -> tuple[Tensor, Tensor]:
        """The backend's result of a step, and naive's."""
        while len(self.kv) <= max(row for row, _ in rows):
            self.kv.append([])
            self.builder.add_row()
        built = self.builder.step(rows, **step)
        q_THD = self.random(built.num_tokens, self.heads)
        k_TKD = self.random(built.num_tokens, self.kv_heads)
        v_TKD = self.random(built.num_tokens, self.kv_heads)
        layer = built.layers["layer"]
        found = self.backend.attend(
            q_THD, k_TKD, v_TKD, layer.view, built.groups[layer.group], **self.keywords
        )
        expected, token = [], 0
        whole = step.get("whole") or [False] * len(rows)
        for (row, num_tokens), is_whole in zip(rows, whole, strict=True):
            first, end = len(self.kv[row]), token + num_tokens
            self.kv[row] += torch.stack((k_TKD, v_TKD), dim=1)[token:end]
            k_CKD, v_CKD = torch.stack(self.kv[row]).unbind(1)
            keywords = {"causal": not is_whole, **self.keywords}
            expected += [
                naive(q_THD[token + i], k_CKD, v_CKD, first + i, **keywords)
                for i in range(num_tokens)
            ]
            token = end
        return found, torch.stack(expected)


def run_all_kinds(history: History, **step: Any) -> None:
    """Prefill and decode, alone, in batches and mixed."""
    for rows in (
        [(0, 1)],
        [(1, 13), (0, 1), (2, 6), (3, 30)],
        [(0, 1), (1, 1), (2, 1), (3, 1)],
        [(3, 9), (1, 1), (4, 5), (2, 3), (0, 1)],
        [(3, 7)],
        [(3, 1)],
        [(3, 2), (4, 1)],
    ):
        assert_equal(history.run(rows, **step))


def assert_equal(pair: tuple[Tensor, Tensor], tolerance: float = 2e-5) -> None:
    found, expected = pair
    torch.testing.assert_close(found.double(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("keywords", KEYWORDS.values(), ids=KEYWORDS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("shuffled", [True, False])
def test_random_ragged_batches_equal_one_query_at_a_time(
    keywords: dict[str, Any], shape: tuple[int, int], shuffled: bool
) -> None:
    history = History(*shape, window=keywords.get("window"), shuffled=shuffled)
    history.use(**keywords)
    run_all_kinds(history)


@pytest.mark.parametrize("keywords", KEYWORDS.values(), ids=KEYWORDS)
def test_upper_bounds_suffice_where_the_host_must_not_read_the_device(
    keywords: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo_plugins.attention.torch.prepared.can_read", lambda device: False)
    history = History(4, 2, window=keywords.get("window"))
    history.use(**keywords)
    run_all_kinds(history, late_tokens=3)


@pytest.mark.gpu
@pytest.mark.parametrize("keywords", KEYWORDS.values(), ids=KEYWORDS)
def test_a_gpu_gives_the_same(keywords: dict[str, Any]) -> None:
    history = History(4, 2, window=keywords.get("window"), device="cuda")
    history.use(**keywords)
    run_all_kinds(history, late_tokens=3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("keywords", ["plain", "all"])
def test_half_precision_decodes_and_prefills(dtype: torch.dtype, keywords: str) -> None:
    history = History(6, 2, dtype=dtype)
    history.use(**KEYWORDS[keywords])
    for rows in ([(0, 9), (1, 3), (2, 17)], [(0, 1), (1, 1), (2, 1)], [(2, 6), (1, 1)]):
        assert_equal(history.run(rows), tolerance=2e-2)


def test_a_cache_of_another_dtype_is_converted() -> None:
    history = History(4, 2, cache_dtype="bfloat16")
    assert_equal(history.run([(0, 9), (1, 3)]), tolerance=3e-2)
    assert_equal(history.run([(0, 1), (1, 1)]), tolerance=3e-2)


def test_blocks_may_lie_further_apart_than_their_bytes() -> None:
    history = History(4, 2, lane_bytes=3 * 4 * 2 * 2 * 8 * 4)
    for rows in ([(0, 9), (1, 3), (2, 17)], [(0, 1), (1, 1), (2, 1)]):
        assert_equal(history.run(rows))


@pytest.mark.parametrize("keywords", ["plain", "window", "all"])
@pytest.mark.parametrize("reads", [True, False])
def test_whole_rows_see_all_of_their_row_and_their_neighbours_do_not(
    keywords: str, reads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo_plugins.attention.torch.prepared.PIECE_QUERIES", 8)
    monkeypatch.setattr("octavo_plugins.attention.torch.prepared.can_read", lambda device: reads)
    history = History(4, 2, window=KEYWORDS[keywords].get("window"))
    history.use(**KEYWORDS[keywords])
    for rows, whole in (
        ([(0, 13), (1, 13), (2, 3), (3, 3), (4, 21)], [True, False, True, False, True]),
        ([(0, 1), (1, 9), (2, 1), (3, 9)], [False, True, True, False]),
        ([(4, 11)], [True]),
    ):
        assert_equal(history.run(rows, whole=whole, late_tokens=0 if reads else 3))


def test_blocks_that_hold_no_whole_slots_are_refused() -> None:
    with pytest.raises(PluginError, match="whole number of slots"):
        History(4, 2, lane_bytes=4 * 2 * 2 * 8 * 4 + 32)


def test_long_prefill_in_pieces_equals_one_query_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("octavo_plugins.attention.torch.prepared.PIECE_QUERIES", 16)
    monkeypatch.setattr("octavo_plugins.attention.torch.prepared.MAX_CELLS", 16 * 64)
    monkeypatch.setattr("octavo_plugins.attention.torch.padded.MAX_KEPT_CELLS", 16)
    history = History(2, 1, window=20)
    history.use(window=20)
    assert_equal(history.run([(0, 75), (1, 12)]))
    assert_equal(history.run([(1, 50), (0, 33)]))


def test_without_a_fused_kernel_the_scores_and_keys_of_a_batch_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a GPU for heads of more than 256 entries: a prompt of 8192 tokens took 11 GiB."""
    plan = "octavo_plugins.attention.torch.prepared"
    monkeypatch.setattr(f"{plan}.can_read", lambda device: False)
    monkeypatch.setattr(f"{plan}.MAX_FUSED_DIM", 4)
    monkeypatch.setattr(f"{plan}.MAX_NUMBERS", 1200)
    num_scores, num_entries = [], []

    def note(pieces: Pieces, *args: Any, **options: Any) -> PaddedBatch:
        num_keys = len(pieces) * pieces.key_lens_N.max()
        num_scores.append(2 * pieces.sizes_N.max() * num_keys)
        if len(pieces) > 1:
            num_entries.append(2 * 8 * num_keys)  # a key and a value of 8 entries
        return PaddedBatch(pieces, *args, **options)

    monkeypatch.setattr(f"{plan}.PaddedBatch", note)
    history = History(2, 1)
    for rows in ([(0, 75), (1, 12), (2, 3)], [(1, 50), (0, 33), (2, 1)], [(0, 1), (1, 1), (2, 1)]):
        assert_equal(history.run(rows))
    assert max(num_scores) <= 1200
    assert 0 < max(num_entries) <= 1200


def test_all_layers_of_a_group_share_a_plan_and_may_differ_in_keywords() -> None:
    spec = CacheSpec.full(kv_heads=2, head_dim=8, dtype="float32")
    backend = TorchAttention()
    builder = StepBuilder({"a": spec, "b": spec}, backend)
    rows = [(builder.add_row(), 5), (builder.add_row(), 9)]
    torch.manual_seed(0)
    k_TKD, v_TKD = torch.randn(2, 14, 2, 8)
    q_THD = torch.randn(14, 4, 8)
    prefill, sinks = builder.step(rows), torch.tensor([5.0, 4.0, 3.0, 2.0])
    for name in ("a", "b"):
        view = builder.layers[name].view
        backend.attend(q_THD, k_TKD, v_TKD, view, prefill.groups[0], scale=0.5)
    again = builder.step([(0, 1), (1, 1)], written=False)
    found = [
        backend.attend(
            q_THD[[4, 13]], None, None, builder.layers[name].view, again.groups[0], **keywords
        )
        for name, keywords in (
            ("a", {"scale": 0.5, "sinks": sinks}),
            ("b", {"scale": 0.5}),
            ("a", {"scale": 0.5, "softcap": 1.0}),
            ("b", {"scale": 0.25}),
        )
    ]
    for result, keywords in zip(
        found, ({"sinks": sinks}, {}, {"softcap": 1.0}, {"scale": 0.25}), strict=True
    ):
        expected = naive(q_THD[13], k_TKD[5:], v_TKD[5:], 8, **{"scale": 0.5, **keywords})
        torch.testing.assert_close(result[1].double(), expected, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("num_rows", [1, 3])
def test_a_read_only_cache_is_seen_whole_without_causality(num_rows: int) -> None:
    spec = CacheSpec.cross(kv_heads=2, head_dim=8, dtype="float32", rows=32)
    backend = TorchAttention()
    builder = StepBuilder({"layer": spec}, backend)
    rows = [(builder.add_row(), 5 + 3 * row) for row in range(num_rows)]
    torch.manual_seed(0)
    written = builder.step(rows)
    num_tokens, view = written.num_tokens, builder.layers["layer"].view
    k_TKD, v_TKD = torch.randn(2, num_tokens, 2, 8)
    backend.attend(torch.randn(num_tokens, 4, 8), k_TKD, v_TKD, view, written.groups[0], scale=1.0)
    for queries in (1, 5):
        step = builder.step([(row, queries) for row, _ in rows], written=False)
        q_THD = torch.randn(step.num_tokens, 4, 8)
        found = backend.attend(q_THD, None, None, view, step.groups[0], scale=0.5, causal=False)
        first = 0
        for row, length in rows:
            keys, values = k_TKD[first : first + length], v_TKD[first : first + length]
            for index in range(row * queries, (row + 1) * queries):
                expected = naive(q_THD[index], keys, values, 0, scale=0.5, causal=False)
                torch.testing.assert_close(found[index].double(), expected, atol=2e-5, rtol=2e-5)
            first += length


def test_work_follows_lengths_and_not_the_number_of_rows() -> None:
    history = History(2, 1, num_blocks=2048)
    rng = random.Random(0)
    lens = [rng.randint(5, 60) for _ in range(64)]
    history.run([(row, length) for row, length in enumerate(lens)])
    step = history.builder.step([(row, 1) for row in range(64)])
    pages = step.layers["layer"].view
    for dtype, most in ((torch.float32, 2), (torch.bfloat16, 8)):
        scoring = Scoring(scale=1.0, causal=True, window=None, softcap=None, sinks=None, alibi=None)
        q_THD = torch.zeros(64, 2, 8, dtype=dtype)
        batches = step.groups[0].prepared.batches(q_THD, pages, scoring)
        assert 1 <= len(batches) <= most
        assert isinstance(batches[0], RaggedBatch) == (dtype == torch.float32)
        tokens = torch.cat([batch.tokens_T for batch in batches])
        assert sorted(tokens.tolist()) == list(range(64))


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (
            CacheSpec.state(
                tensors=(StateTensor((2, 2), "float32"),), log=(StateTensor((2,), "float32"),)
            ),
            "kind='state'",
        ),
        (CacheSpec.none(), "kind='none'"),
        (CacheSpec.full(kv_heads=1, head_dim=8, dtype="fp8"), "dtype='fp8'"),
        (CacheSpec(kind="full", kv_heads=1, key_dim=8, value_dim=4), "key_dim=8"),
    ],
)
def test_what_it_cannot_do_is_refused_with_a_reason(spec: CacheSpec, reason: str) -> None:
    assert reason in (TorchAttention().supports(spec, torch.device("cpu")) or "")


def test_a_window_without_causality_is_refused() -> None:
    history = History(2, 1)
    history.use(window=4, causal=False)
    with pytest.raises(PluginError, match="window=4"):
        history.run([(0, 3)])


def test_looking_further_back_than_the_cache_keeps_is_refused() -> None:
    history = History(2, 1, window=4)
    with pytest.raises(PluginError, match="window=None, but the layer's cache keeps 4 tokens"):
        history.run([(0, 3)])
