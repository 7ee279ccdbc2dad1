from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import octavo_plugins.attention.paged as paged_plugin
import octavo_plugins.attention.torch as torch_plugin
from octavo.testing.step_building import StepBuilder
from octavo_plugins.attention.paged.backend import PagedAttention
from octavo_plugins.attention.torch.backend import TorchAttention
from octavo_registry import LazyRegistry, PluginHost, hookimpl
from octavo_registry.attention import AttentionBackend, QKTransform
from octavo_registry.cache import CacheSpec, StateTensor
from octavo_registry.errors import PluginError

HEAD_DIM = 64
KEYWORDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 7},
    "softcap": {"softcap": 2.0},
    "sinks": {"sinks": True},
    "alibi": {"alibi": True},
    "all": {"window": 21, "softcap": 3.0, "sinks": True, "alibi": True},
}
STEPS = [
    [(0, 1)],
    [(1, 13), (0, 1), (2, 6), (3, 70)],
    [(0, 1), (1, 1), (2, 1), (3, 1)],
    [(3, 9), (1, 1), (4, 5), (2, 3), (0, 1)],
    [(3, 7)],
    [(3, 1)],
]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


class Pair:
    """The backend and the torch backend, each with a cache of its own, fed the same."""

    def __init__(self, device: str, heads: int = 6, kv_heads: int = 2, **spec: Any) -> None:
        torch.manual_seed(0)
        self.device, self.heads, self.kv_heads = device, heads, kv_heads
        self.dtype = getattr(torch, spec.pop("q_dtype", "float32"))
        sizes = {"kv_heads": kv_heads, "key_dim": HEAD_DIM, "value_dim": HEAD_DIM}
        self.spec = CacheSpec(
            kind=spec.pop("kind", "window" if "window" in spec else "full"), **sizes, **spec
        )
        self.builders = [
            StepBuilder({"layer": self.spec}, backend, block_tokens=8, device=device)
            for backend in (PagedAttention(), TorchAttention())
        ]

    def random(self, *shape: int) -> Tensor:
        return torch.randn(*shape).to(self.device, self.dtype)

    def run(
        self, rows: list[tuple[int, int]], *, reads: bool = False, late: int = 0, **keywords: Any
    ) -> tuple[Tensor, Tensor]:
        """Both results of a step, which stores unless it ``reads`` only."""
        results, qkv = [], None
        for builder in self.builders:
            while len(builder.lens) <= max(row for row, _ in rows):
                builder.add_row()
            step = builder.step(rows, written=not reads, late_tokens=late)
            if qkv is None:
                qkv = self.random(step.num_tokens, self.heads + 2 * self.kv_heads, HEAD_DIM)
            q_THD, k_TKD, v_TKD = qkv.clone().split(
                [self.heads, self.kv_heads, self.kv_heads], dim=1
            )
            layer = step.layers["layer"]
            if reads:
                k_TKD = v_TKD = None
            results.append(
                layer.backend.attend(
                    *(q_THD, k_TKD, v_TKD, layer.view, step.groups[0]), scale=0.2, **keywords
                )
            )
        return results[0], results[1]

    def tensors(self, *, sinks: bool = False, alibi: bool = False, **keywords: Any) -> Any:
        if sinks:
            keywords["sinks"] = self.random(self.heads)
        if alibi:
            keywords["alibi"] = torch.rand(self.heads).to(self.device)
        return keywords


def assert_equal(pair: tuple[Tensor, Tensor], tolerance: float = 2e-5) -> None:
    torch.testing.assert_close(*pair, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("keywords", KEYWORDS.values(), ids=KEYWORDS)
@pytest.mark.parametrize("heads", [(4, 4), (6, 2), (3, 1)], ids=["mha", "gqa", "mqa"])
def test_random_ragged_batches_equal_the_torch_backend(
    device: str, keywords: dict[str, Any], heads: tuple[int, int]
) -> None:
    window = {"window": keywords["window"]} if "window" in keywords else {}
    pair = Pair(device, *heads, **window)
    tensors = pair.tensors(**keywords)
    for rows in STEPS:
        assert_equal(pair.run(rows, late=3, **tensors))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_equals_the_torch_backend(device: str, dtype: str) -> None:
    pair = Pair(device, dtype=dtype, q_dtype=dtype)
    tensors = pair.tensors(softcap=3.0, sinks=True)
    for rows in STEPS:
        assert_equal(pair.run(rows, **tensors), tolerance=2e-2)


@pytest.mark.parametrize("device", DEVICES)
def test_queries_and_keys_are_normalised_and_turned_first(device: str) -> None:
    pair = Pair(device)
    for rows in STEPS[:3]:
        angles_TF = torch.rand(sum(num_tokens for _, num_tokens in rows), HEAD_DIM // 2)
        transform = QKTransform(
            cos_TF=angles_TF.cos().to(device),
            sin_TF=angles_TF.sin().to(device),
            q_norm_D=pair.random(HEAD_DIM),
            k_norm_D=pair.random(HEAD_DIM),
        )
        assert_equal(pair.run(rows, transform=transform))


@pytest.mark.parametrize("device", DEVICES)
def test_a_read_only_cache_is_seen_whole_without_causality(device: str) -> None:
    pair = Pair(device, kind="cross", rows=128)
    pair.run([(0, 9), (1, 30)], causal=False)
    for queries in (1, 5):
        assert_equal(pair.run([(0, queries), (1, queries)], reads=True, causal=False))


@pytest.mark.parametrize("device", DEVICES)
def test_a_float8_cache_stays_near_one_in_full(device: str) -> None:
    pair = Pair(device)
    spec = CacheSpec.full(kv_heads=2, head_dim=HEAD_DIM, dtype="fp8")
    pair.builders[0] = StepBuilder({"layer": spec}, PagedAttention(), block_tokens=8, device=device)
    for rows in STEPS:
        found, expected = pair.run(rows)
        assert (found - expected).norm() < 0.06 * expected.norm()


@pytest.mark.parametrize("device", DEVICES)
def test_a_batch_invariant_step_has_the_same_bits_alone(device: str) -> None:
    pair = Pair(device)
    rows = [(0, 30), (1, 9), (2, 55)]
    pair.run(rows)
    builder, q_THD = pair.builders[0], pair.random(3, 6, HEAD_DIM)
    results = []
    for chosen in ([0, 1, 2], [2]):
        step = builder.step([(row, 1) for row in chosen], written=False)
        step.groups[0].batch_invariant = True
        step.groups[0].prepared = builder.backend.prepare(step.groups[0], pair.spec)
        view = step.layers["layer"].view
        results.append(
            builder.backend.attend(q_THD[chosen], None, None, view, step.groups[0], scale=0.2)
        )
    assert torch.equal(results[0][2], results[1][0])


def test_it_is_a_backend_whose_steps_can_be_recorded() -> None:
    assert isinstance(PagedAttention(), AttentionBackend)
    assert PagedAttention.most_recorded_queries == 1


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (
            CacheSpec.state(
                tensors=(StateTensor((2, 2), "float32"),), log=(StateTensor((2,), "float32"),)
            ),
            "kind='state'",
        ),
        (CacheSpec.full(kv_heads=1, head_dim=64, dtype="float64"), "dtype='float64'"),
        (CacheSpec.full(kv_heads=1, head_dim=120, dtype="fp8"), "key_dim=120 must be a multiple"),
        (CacheSpec.full(kv_heads=1, head_dim=264, dtype="float16"), "256 at most"),
        (CacheSpec(kind="full", kv_heads=1, key_dim=8, value_dim=4), "value_dim=4"),
    ],
)
def test_what_it_cannot_do_is_refused_with_a_reason(spec: CacheSpec, reason: str) -> None:
    assert reason in (PagedAttention().supports(spec, torch.device("cpu")) or "")


def test_blocks_of_other_sizes_are_refused() -> None:
    spec = CacheSpec.full(kv_heads=1, head_dim=64, dtype="float32")
    with pytest.raises(PluginError, match="block_tokens=64"):
        PagedAttention().page_bytes(spec, 64)


def test_a_window_without_causality_is_refused() -> None:
    with pytest.raises(PluginError, match="window=4 needs causal"):
        Pair("cpu").run([(0, 3)], window=4, causal=False)


def test_looking_further_back_than_the_cache_keeps_is_refused() -> None:
    with pytest.raises(PluginError, match="window=None, but the layer's cache keeps 4 tokens"):
        Pair("cpu", window=4).run([(0, 3)])


def test_a_transform_of_what_is_only_read_is_refused() -> None:
    pair = Pair("cpu", kind="cross", rows=128)
    pair.run([(0, 3)])
    with pytest.raises(PluginError, match="transform needs keys"):
        pair.run([(0, 1)], reads=True, transform=QKTransform())


@pytest.mark.parametrize(
    ("device", "capability", "dtype", "chosen"),
    [
        ("cuda", (9, 0), "bfloat16", "hopper"),
        ("cuda", (9, 0), "float32", "paged"),
        ("cuda", (8, 0), "bfloat16", "paged"),
        ("cuda", (7, 0), "float16", "torch"),
        ("cpu", (9, 0), "float32", "torch"),
    ],
)
def test_it_is_chosen_after_a_device_s_own_backend_and_before_torch(
    device: str,
    capability: tuple[int, int],
    dtype: str,
    chosen: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)

    @hookimpl
    def select_attention_backend(spec: CacheSpec, device: torch.device) -> str | None:
        is_hopper = device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0)
        return "hopper" if is_hopper and spec.dtype != "float32" else None

    @hookimpl
    def register_attention_backends(backends: LazyRegistry[AttentionBackend]) -> None:
        backends.add("hopper", "nowhere:Hopper")

    hopper = SimpleNamespace(
        __name__="hopper",
        OCTAVO_API="1",
        register_attention_backends=register_attention_backends,
        select_attention_backend=select_attention_backend,
    )
    host = PluginHost()
    for plugin in (hopper, paged_plugin, torch_plugin):  # In the order of their names.
        host.register(plugin)
    spec = CacheSpec.full(kv_heads=1, head_dim=64, dtype=dtype)
    select = host.hook.select_attention_backend
    assert select(spec=spec, device=torch.device(device), query_dtype=dtype) == chosen
