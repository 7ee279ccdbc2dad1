from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from octavo.testing.step_building import StepBuilder
from octavo_plugins.attention import hopper
from octavo_plugins.attention.hopper.backend import HopperAttention, Pages
from octavo_plugins.attention.torch.backend import TorchAttention
from octavo_registry.attention import AttentionBackend, QKTransform
from octavo_registry.cache import CacheSpec
from octavo_registry.errors import PluginError
from octavo_registry.step import AttentionStep


class Pair:
    """The backend and the one in torch, in float32, fed the same tokens."""

    def __init__(
        self,
        heads: int = 8,
        kv_heads: int = 2,
        *,
        head_dim: int = 128,
        window: int | None = None,
        dtype: torch.dtype = torch.bfloat16,
        is_float8: bool = False,
        **builder: Any,
    ) -> None:
        self.random = torch.Generator("cuda").manual_seed(0)
        self.heads, self.kv_heads, self.head_dim, self.dtype = heads, kv_heads, head_dim, dtype
        self.is_float8 = is_float8
        self.backends: list[AttentionBackend] = [HopperAttention(), TorchAttention()]
        self.builders = []
        own_dtype = "fp8" if is_float8 else str(dtype).removeprefix("torch.")
        for backend, cache_dtype in zip(self.backends, (own_dtype, "float32"), strict=True):
            spec = CacheSpec(
                kind="full" if window is None else "window",
                kv_heads=kv_heads,
                key_dim=head_dim,
                value_dim=head_dim,
                dtype=cache_dtype,
                window=window,
            )
            self.builders.append(
                StepBuilder({"layer": spec}, backend, block_tokens=16, device="cuda", **builder)
            )

    def draw(self, num_tokens: int, heads: int) -> Tensor:
        shape = (num_tokens, heads, self.head_dim)
        drawn = torch.randn(shape, generator=self.random, device="cuda")
        if self.is_float8:  # numbers that the cache can hold, so that results are as near
            drawn = drawn.to(torch.float8_e4m3fn)
        return drawn.to(self.dtype)

    def check(self, rows: list[tuple[int, int]], **keywords: Any) -> None:
        num_tokens = sum(count for _, count in rows)
        qkv_THD = self.draw(num_tokens, self.heads + 2 * self.kv_heads)
        transform = keywords.pop("transform", None)
        results = []
        for backend, builder in zip(self.backends, self.builders, strict=True):
            while len(builder.lens) <= max(row for row, _ in rows):
                builder.add_row()
            step = builder.step(rows, late_tokens=3)
            is_torch = isinstance(backend, TorchAttention)
            parts = (qkv_THD.float() if is_torch else qkv_THD.clone()).split(
                (self.heads, self.kv_heads, self.kv_heads), dim=1
            )
            own = transform
            if is_torch and transform is not None:
                own = QKTransform(
                    cos_TF=transform.cos_TF.float(),
                    sin_TF=transform.sin_TF.float(),
                    q_norm_D=transform.q_norm_D.float(),
                    k_norm_D=transform.k_norm_D.float(),
                )
            layer = step.layers["layer"]
            group = step.groups[layer.group]
            results.append(
                backend.attend(
                    *parts, layer.view, group, scale=0.1, transform=own, **keywords
                ).float()
            )
        found, expected = results
        assert bool(found.isfinite().all())
        error = (found - expected).norm() / expected.norm()
        # A rotated key is no number that float8 has.
        tolerance = 6e-2 if self.is_float8 and transform is not None else 1e-2
        assert error < tolerance, f"relative error {error:.2e} for {rows}"


STEPS: dict[str, list[list[tuple[int, int]]]] = {
    "decode": [[(0, 1), (1, 1)], [(0, 1), (1, 1), (2, 1)], [(1, 1)]],
    "prefill": [[(0, 300), (1, 17), (2, 1000)], [(1, 64), (0, 2)]],
    "mixed": [
        [(0, 100), (1, 33)],
        [(0, 1), (1, 1), (2, 200)],
        [(0, 1), (2, 1), (1, 40), (3, 1)],
        [(3, 1), (2, 1), (1, 1), (0, 1), (4, 16)],
    ],
}
KEYWORDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 37},
    "softcap": {"softcap": 2.0},
    "sinks": {"sinks": True},
    "all": {"window": 90, "softcap": 3.0, "sinks": True},
}


@pytest.mark.gpu
@pytest.mark.parametrize("keywords", KEYWORDS.values(), ids=KEYWORDS)
@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_ragged_batches_equal_attention_in_torch(
    steps: list[list[tuple[int, int]]], keywords: dict[str, Any]
) -> None:
    pair = Pair(window=keywords.get("window"))
    if "sinks" in keywords:
        keywords = {**keywords, "sinks": torch.randn(pair.heads, device="cuda")}
    for rows in steps:
        pair.check(rows, **keywords)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(2, 2), (6, 2), (16, 1)])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_any_group_size_and_dtype(
    shape: tuple[int, int], head_dim: int, dtype: torch.dtype
) -> None:
    pair = Pair(*shape, head_dim=head_dim, dtype=dtype)
    for rows in STEPS["mixed"]:
        pair.check(rows)


@pytest.mark.gpu
@pytest.mark.parametrize("keywords", [KEYWORDS["plain"], KEYWORDS["all"]], ids=["plain", "all"])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_float8_cache_serves_decode_prefill_and_both(
    dtype: torch.dtype, head_dim: int, keywords: dict[str, Any]
) -> None:
    for steps in STEPS.values():
        window = keywords.get("window")
        pair = Pair(head_dim=head_dim, dtype=dtype, is_float8=True, window=window)
        if "sinks" in keywords:
            keywords = {**keywords, "sinks": torch.randn(pair.heads, device="cuda")}
        for rows in steps:
            pair.check(rows, **keywords)


@pytest.mark.gpu
@pytest.mark.parametrize("is_float8", [False, True])
def test_queries_and_keys_are_transformed_before_they_are_used(is_float8: bool) -> None:
    pair = Pair(is_float8=is_float8)
    for rows in STEPS["mixed"]:
        num_tokens = sum(count for _, count in rows)
        angles_TF = torch.rand((num_tokens, 64), device="cuda") * 6
        pair.check(
            rows,
            transform=QKTransform(
                cos_TF=angles_TF.cos().bfloat16(),
                sin_TF=angles_TF.sin().bfloat16(),
                q_norm_D=torch.rand(128, device="cuda").bfloat16(),
                k_norm_D=torch.rand(128, device="cuda").bfloat16(),
            ),
        )


@pytest.mark.gpu
def test_blocks_may_lie_further_apart_than_their_bytes() -> None:
    pair = Pair(lane_bytes=3 * 16 * 2 * 2 * 128 * 4)
    for rows in STEPS["mixed"]:
        pair.check(rows)


@pytest.mark.gpu
@pytest.mark.parametrize("keywords", [{"alibi": True}, {"causal": False}])
def test_keywords_it_does_not_know_are_refused(keywords: dict[str, Any]) -> None:
    if "alibi" in keywords:
        keywords = {"alibi": torch.zeros(8, device="cuda")}
    with pytest.raises(PluginError, match="knows neither alibi nor causal"):
        Pair().check([(0, 3)], **keywords)


@pytest.mark.gpu
def test_looking_further_back_than_the_cache_keeps_is_refused() -> None:
    with pytest.raises(PluginError, match="window=None, but the layer's cache keeps 40 tokens"):
        Pair(window=40).check([(0, 3)])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "fp8"])
def test_it_is_chosen_on_a_hopper_gpu(dtype: str) -> None:
    spec = CacheSpec.full(kv_heads=2, head_dim=128, dtype=dtype)
    assert hopper.select_attention_backend(spec, torch.device("cuda"), "bfloat16") == "hopper"
    assert hopper.select_attention_backend(spec, torch.device("cuda"), "float32") is None


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (CacheSpec.latent(key_dim=64, value_dim=64, dtype="bfloat16"), "kind='latent'"),
        (CacheSpec.full(kv_heads=1, head_dim=64, dtype="float32"), "dtype='float32'"),
        (CacheSpec.full(kv_heads=1, head_dim=80, dtype="bfloat16"), "key_dim=80"),
        (
            CacheSpec(kind="full", kv_heads=1, key_dim=128, value_dim=64, dtype="bfloat16"),
            "value_dim=64",
        ),
        (CacheSpec.full(kv_heads=1, head_dim=64, dtype="bfloat16"), "'cpu' is not a GPU"),
    ],
)
def test_what_it_cannot_do_is_refused_with_a_reason(spec: CacheSpec, reason: str) -> None:
    assert reason in (HopperAttention().supports(spec, torch.device("cpu")) or "")


def test_queries_in_float32_are_refused_with_what_to_do() -> None:
    q_THD, step = torch.zeros(1, 2, 64), cast(AttentionStep, SimpleNamespace(prepared=None))
    with pytest.raises(PluginError, match="name 'paged'"):
        HopperAttention().attend(q_THD, None, None, cast(Pages, None), step, scale=1.0)


def test_it_is_not_chosen_where_there_is_no_gpu() -> None:
    spec = CacheSpec.full(kv_heads=2, head_dim=128, dtype="bfloat16")
    assert hopper.select_attention_backend(spec, torch.device("cpu"), "bfloat16") is None


def test_a_page_is_the_keys_and_values_of_its_tokens() -> None:
    backend = HopperAttention()
    spec = CacheSpec.full(kv_heads=2, head_dim=64, dtype="bfloat16")
    assert backend.page_bytes(spec, 16) == 2 * 2 * 16 * 64 * 2
    pages = torch.zeros((5, 8192 + 512), dtype=torch.uint8)[:, :8192]
    view = backend.views(pages, spec, 16)
    assert view.cache.shape == (5, 2, 2, 16, 64)
    assert view.values_BKND.data_ptr() - view.keys_BKND.data_ptr() == 4096
    with pytest.raises(PluginError, match="block_tokens=24"):
        backend.page_bytes(spec, 24)
