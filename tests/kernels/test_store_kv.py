from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from octavo_kernels.rms_norm import rms_norm
from octavo_kernels.rotary import rotary_
from octavo_kernels.store_kv import reference, store_kv, store_kv_paged


@dataclass
class Case:
    """A step's queries, keys and values as parts of one row, and caches full of other things."""

    num_tokens: int = 5
    q_heads: int = 4
    kv_heads: int = 2
    key_dim: int = 16
    value_dim: int = 16
    num_pairs: int = 0
    norms: bool = False
    block_tokens: int = 4
    dtype: torch.dtype = torch.float32
    cache_dtype: torch.dtype | None = None
    paged: bool = False
    padding: int = 0
    device: str = "cpu"

    def make(self) -> tuple[list[Tensor], dict[str, Tensor]]:
        """The positional tensors and those given by name."""
        torch.manual_seed(self.num_tokens + self.key_dim)
        options = {"dtype": self.dtype, "device": self.device}
        sizes = [
            self.q_heads * self.key_dim,
            self.kv_heads * self.key_dim,
            self.kv_heads * self.value_dim,
            self.padding,
        ]
        parts = torch.randn(self.num_tokens, sum(sizes), **options).split(sizes, dim=1)  # type: ignore[arg-type]
        dims = (self.key_dim, self.key_dim, self.value_dim)
        qkv = [part.unflatten(1, (-1, dim)) for part, dim in zip(parts, dims, strict=False)]
        num_blocks = 3 + self.num_tokens // self.block_tokens
        slots_T = torch.randperm(num_blocks * self.block_tokens, device=self.device)
        named = {}
        if self.num_pairs:
            angles = torch.randn(self.num_tokens, 2 * self.num_pairs, device=self.device)
            turns = torch.cat((angles.cos(), angles.sin()), dim=1).to(self.dtype)
            named["cos_TF"], named["sin_TF"] = (
                turns[:, : self.num_pairs],
                turns[:, self.num_pairs : 2 * self.num_pairs],
            )
        if self.norms:
            named["q_norm_D"], named["k_norm_D"] = torch.randn(2, self.key_dim, **options)  # type: ignore[call-overload]
        caches = self._caches(num_blocks)
        return [*qkv, *caches, slots_T[: self.num_tokens]], named

    def _caches(self, num_blocks: int) -> list[Tensor]:
        dtype = self.cache_dtype or self.dtype
        shapes: list[tuple[int, ...]] = [
            (num_blocks, self.kv_heads, self.block_tokens, self.key_dim),
            (num_blocks, self.kv_heads, self.block_tokens, self.value_dim),
        ]
        if self.paged:
            run = 16 // dtype.itemsize
            shapes = [
                (num_blocks, self.kv_heads, self.key_dim // run, self.block_tokens, run),
                (num_blocks, self.kv_heads, self.value_dim, self.block_tokens),
            ]
        return [torch.randn(shape, device=self.device).to(dtype) for shape in shapes]

    @property
    def function(self) -> Callable[..., None]:
        return store_kv_paged if self.paged else store_kv


def test_keys_and_values_go_to_their_slots_and_nowhere_else() -> None:
    (q, k, v, keys, values, slots_T), _ = Case().make()
    before, queries = keys.clone(), q.clone()
    store_kv(q, k, v, keys, values, slots_T)
    blocks_T, offsets_T = slots_T // 4, slots_T % 4
    assert torch.equal(keys[blocks_T, :, offsets_T], k)
    assert torch.equal(values[blocks_T, :, offsets_T], v)
    before[blocks_T, :, offsets_T] = k
    assert torch.equal(keys, before)
    assert torch.equal(q, queries)


def test_queries_and_keys_are_normalised_then_turned() -> None:
    (q, k, v, keys, values, slots_T), named = Case(num_pairs=6, norms=True).make()
    angles = named["cos_TF"], named["sin_TF"]
    expected_q = rotary_(rms_norm(q, named["q_norm_D"], 1e-6), *angles)
    expected_k = rotary_(rms_norm(k, named["k_norm_D"], 1e-6), *angles)
    given_k = k.clone()
    store_kv(q, k, v, keys, values, slots_T, **named)
    torch.testing.assert_close(q, expected_q)
    torch.testing.assert_close(keys[slots_T // 4, :, slots_T % 4], expected_k)
    assert torch.equal(values[slots_T // 4, :, slots_T % 4], v)
    assert torch.equal(k, given_k)


def test_both_layouts_hold_the_same() -> None:
    tensors, named = Case(num_pairs=8).make()
    store_kv(*(tensor.clone() for tensor in tensors[:3]), *tensors[3:], **named)
    paged, _ = Case(num_pairs=8, paged=True).make()
    store_kv_paged(*tensors[:3], *paged[3:5], tensors[5], **named)
    blocks_T, offsets_T = tensors[5] // 4, tensors[5] % 4
    keys = paged[3].permute(0, 1, 3, 2, 4).flatten(3)
    assert torch.equal(keys[blocks_T, :, offsets_T], tensors[3][blocks_T, :, offsets_T])
    assert torch.equal(paged[4].mT[blocks_T, :, offsets_T], tensors[4][blocks_T, :, offsets_T])


def test_a_float8_cache_holds_scaled_and_saturated_values() -> None:
    (q, k, v, keys, values, slots_T), _ = Case(cache_dtype=torch.float8_e4m3fn).make()
    k[0, 0, 0], v[0, 0, 0] = 1e6, -1e6
    store_kv(q, k, v, keys, values, slots_T, k_scale=0.5, v_scale=2.0)
    stored_k = keys.float()[slots_T // 4, :, slots_T % 4]
    stored_v = values.float()[slots_T // 4, :, slots_T % 4]
    assert (stored_k[0, 0, 0], stored_v[0, 0, 0]) == (448.0, -448.0)
    torch.testing.assert_close(stored_k[1:] * 0.5, k[1:], rtol=2**-4, atol=2**-9)
    torch.testing.assert_close(stored_v[1:] * 2.0, v[1:], rtol=2**-4, atol=2**-7)


def test_arguments_that_do_not_fit_are_refused() -> None:
    (q, k, v, keys, values, slots_T), _ = Case().make()
    cos_TF = torch.ones(5, 4)
    with pytest.raises(ValueError, match=r"slots of shape \[4\] must be \[5\]"):
        store_kv(q, k, v, keys, values, slots_T[:4])
    with pytest.raises(ValueError, match=r"value_cache of shape \[4, 2, 4, 16\] must be"):
        store_kv(q, k, v, torch.ones(5, 2, 4, 16), values, slots_T)
    with pytest.raises(ValueError, match=r"cos \[5, 4\] and sin None must both"):
        store_kv(q, k, v, keys, values, slots_T, cos_TF=cos_TF)
    with pytest.raises(ValueError, match="with at most 8 frequencies"):
        store_kv(
            *(q, k, v, keys, values, slots_T), cos_TF=torch.ones(5, 9), sin_TF=torch.ones(5, 9)
        )
    with pytest.raises(ValueError, match=r"and slots\s+torch.int32"):
        store_kv(q, k, v, keys, values, slots_T.int())
    with pytest.raises(ValueError, match=r"caches of torch.float16 and torch.float32"):
        store_kv(q, k, v, keys.half(), values, slots_T)
    with pytest.raises(ValueError, match=r"last axis of k, strides \(32, 1, 2\), has gaps"):
        store_kv(q, torch.ones(5, 16, 2).mT, v, keys, values, slots_T)


DIMS = [(128, 128, 64), (64, 64, 8), (80, 80, 16), (256, 128, 0), (112, 112, 56), (20, 12, 5)]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("paged", [False, True])
def test_the_kernel_equals_the_reference(paged: bool, dtype: torch.dtype) -> None:
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    for dims, norms, num_tokens, (cache_dtype, padding) in itertools.product(
        DIMS, (False, True), (1, 37, 200), ((None, 8), (torch.float8_e4m3fn, 3))
    ):
        key_dim, value_dim, num_pairs = dims
        if paged and key_dim % (16 // (cache_dtype or dtype).itemsize):
            continue
        case = Case(
            num_tokens=num_tokens,
            q_heads=7,
            kv_heads=3,
            key_dim=key_dim,
            value_dim=value_dim,
            num_pairs=num_pairs,
            norms=norms,
            block_tokens=16,
            dtype=dtype,
            cache_dtype=cache_dtype,
            paged=paged,
            padding=padding,
            device="cuda",
        )
        tensors, named = case.make()
        expected, _ = case.make()
        scales = (0.7, 1.3)
        case.function(*tensors, **named, eps=1e-5, k_scale=scales[0], v_scale=scales[1])
        options = [named.get(name) for name in ("cos_TF", "sin_TF", "q_norm_D", "k_norm_D")]
        reference.store_kv(*expected, *options, 1e-5, *scales)
        for found, wanted in zip(tensors[:3], expected[:3], strict=True):
            torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)
        for found, wanted in zip(tensors[3:5], expected[3:5], strict=True):
            coarse = tolerance if cache_dtype is None else 2**-3
            fine = tolerance if cache_dtype is None else 2**-7
            torch.testing.assert_close(found.float(), wanted.float(), rtol=coarse, atol=fine)


@pytest.mark.gpu
def test_no_tokens_and_strided_caches_are_taken() -> None:
    (q, k, v, keys, _, slots_T), _ = Case(device="cuda").make()
    pages = torch.zeros(keys.shape[0], 2, *keys.shape[1:], device="cuda")
    store_kv(q[:0], k[:0], v[:0], pages[:, 0], pages[:, 1], slots_T[:0])
    assert not pages.any()
    store_kv(q, k, v, pages[:, 0], pages[:, 1], slots_T)
    assert torch.equal(pages[slots_T // 4, 0, :, slots_T % 4], k)
    assert torch.equal(pages[slots_T // 4, 1, :, slots_T % 4], v)
