from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from octavo_kernels.paged_attention import BlockSparse, paged_attention

Rows = list[tuple[int, int]]

DECODE: Rows = [(1, 1), (1, 700), (1, 64), (1, 513), (1, 31)]
MIXED: Rows = [(1, 40), (1, 530), (19, 19), (33, 600), (2, 1030), (5, 5)]
SPARSE = BlockSparse(block_tokens=32, local_blocks=2, vertical_stride=3, head_step=1)
FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 37},
    "softcap": {"softcap": 2.0},
    "sinks": {"sinks_H": True},
    "alibi": {"alibi_H": True},
    "sparse": {"sparse": SPARSE},
    "not causal": {"causal": False},
    "all": {"window": 70, "softcap": 3.0, "sinks_H": True, "alibi_H": True, "sparse": SPARSE},
}


@dataclass
class Batch:
    """Arguments of ``paged_attention``; what no row holds, or no query sees, is NaN."""

    tensors: list[Tensor]
    keywords: dict[str, Any]
    rows: Rows

    def to(self, device: str) -> Batch:
        """A copy, whose strides are kept."""
        keywords = {k: v.to(device) if k[-2:] == "_H" else v for k, v in self.keywords.items()}
        return Batch([_moved(x, device) for x in self.tensors], keywords, self.rows)

    def run(self, **keywords: Any) -> Tensor:
        self.tensors[-1].fill_(torch.nan)
        return paged_attention(*self.tensors, **{**self.keywords, **keywords})


def _moved(x: Tensor, device: str) -> Tensor:
    storage = x.untyped_storage().to(device=torch.device(device))
    return torch.empty(0, dtype=x.dtype, device=device).set_(
        storage, x.storage_offset(), x.shape, x.stride()
    )


def make(
    rows: Rows,
    *,
    heads: int = 8,
    kv_heads: int = 2,
    head_dim: int = 64,
    block_tokens: int = 16,
    dtype: torch.dtype = torch.float32,
    is_fp8: bool = False,
    seed: int = 0,
    **keywords: Any,
) -> tuple[Batch, list[Tensor]]:
    """A batch of (query length, context length), and each row's keys and values [2, C, K, D]."""
    torch.manual_seed(seed)
    rng = random.Random(seed)
    cache_dtype = torch.float8_e4m3fn if is_fp8 else dtype
    piece = 16 // cache_dtype.itemsize
    num_blocks = sum(-(-length // block_tokens) for _, length in rows) + 5
    half = kv_heads * head_dim * block_tokens * cache_dtype.itemsize
    # Blocks lie further apart than their bytes.
    pages = torch.full((num_blocks, 2 * half + 32), 0xFF, dtype=torch.uint8)
    keys = pages[:, :half].view(torch.uint8)
    keys = keys.view(num_blocks, kv_heads, head_dim // piece, block_tokens, 16)
    values = pages[:, half : 2 * half].view(
        num_blocks, kv_heads, head_dim, block_tokens, cache_dtype.itemsize
    )
    free = list(range(num_blocks))
    rng.shuffle(free)
    num_lines = len(rows) + 3
    width = max(-(-length // block_tokens) for _, length in rows)
    table_SB = torch.randint(num_blocks, (num_lines, width + 2), dtype=torch.int32)
    table_rows_R = torch.randperm(num_lines, dtype=torch.int32)[: len(rows)]
    scales = (keywords.get("k_scale", 1.0), keywords.get("v_scale", 1.0))
    window, dense = keywords.get("window"), []
    for row, (query_len, length) in enumerate(rows):
        kv = torch.randn(2, length, kv_heads, head_dim)
        stored = [
            (x / scale).to(cache_dtype).contiguous() for x, scale in zip(kv, scales, strict=True)
        ]
        dense.append(torch.stack([x.double() * s for x, s in zip(stored, scales, strict=True)]))
        first = 0 if window is None else max(length - query_len - window + 1, 0)
        for position in range(first, length):
            if position == first or position % block_tokens == 0:
                block = free.pop()
                table_SB[table_rows_R[row], position // block_tokens] = block
            offset = position % block_tokens
            key = stored[0][position].view(torch.uint8)
            keys[block, :, :, offset] = key.view(kv_heads, head_dim // piece, 16)
            value = stored[1][position].view(torch.uint8)
            values[block, :, :, offset] = value.view(kv_heads, head_dim, -1)
    positions = [p for query_len, length in rows for p in range(length - query_len, length)]
    token_rows = [row for row, (query_len, _) in enumerate(rows) for _ in range(query_len)]
    for name in ("sinks_H", "alibi_H"):
        if keywords.get(name):
            keywords[name] = torch.randn(heads) if name == "sinks_H" else torch.rand(heads) / 8
    qkv = torch.randn(len(positions), heads + 2 * kv_heads, head_dim).to(dtype)
    q_THD = qkv[:, :heads]  # As in a model: a view of the fused projection.
    tensors = [
        *(q_THD, keys.view(cache_dtype), values.view(cache_dtype).squeeze(-1)),
        *(table_SB, torch.tensor(token_rows, dtype=torch.int32), table_rows_R),
        *(torch.tensor([length for _, length in rows], dtype=torch.int32),),
        *(torch.tensor(positions), torch.empty(len(positions), heads, head_dim, dtype=dtype)),
    ]
    bounds = {
        "max_context_len": max(length for _, length in rows),
        "max_query_len": max(query_len for query_len, _ in rows),
    }
    return Batch(tensors, {"scale": head_dim**-0.5, **bounds, **keywords}, rows), dense


def naive(batch: Batch, dense: list[Tensor]) -> Tensor:
    """A query and head at a time, in float64, from keys and values that lie one after another."""
    q_THD, keywords, sparse = batch.tensors[0], batch.keywords, batch.keywords.get("sparse")
    window, softcap = keywords.get("window"), keywords.get("softcap")
    sinks_H, alibi_H = keywords.get("sinks_H"), keywords.get("alibi_H")
    heads, kv_heads = q_THD.shape[1], dense[0].shape[2]
    results, token = [], 0
    for (query_len, length), (k_CKD, v_CKD) in zip(batch.rows, dense, strict=True):
        for position in range(length - query_len, length):
            for head in range(heads):
                seen = []
                for key in range(position + 1 if keywords.get("causal", True) else length):
                    if window is not None and position - key >= window:
                        continue
                    if sparse is not None:
                        blocks = position // sparse.block_tokens, key // sparse.block_tokens
                        stripe = blocks[1] + 1 + head * sparse.head_step
                        is_near = blocks[0] - blocks[1] < sparse.local_blocks
                        if not is_near and stripe % sparse.vertical_stride:
                            continue
                    seen.append(key)
                kv_head = head * kv_heads // heads
                scores = k_CKD[seen, kv_head] @ q_THD[token, head].double() * keywords["scale"]
                if softcap is not None:
                    scores = softcap * torch.tanh(scores / softcap)
                if alibi_H is not None:
                    scores = scores + alibi_H[head] * (torch.tensor(seen) - position)
                if sinks_H is not None:
                    scores = torch.cat((scores, sinks_H[head : head + 1].double()))
                results.append(scores.softmax(0)[: len(seen)] @ v_CKD[seen, kv_head])
            token += 1
    return torch.stack(results).view(q_THD.shape)


def assert_near(found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    tolerance = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}[dtype]
    difference = found.cpu().double() - expected.double()
    error = difference.norm() / expected.double().norm()
    assert error < tolerance, f"relative error {error:.2e}"  # NaN fails as well
    assert difference.abs().max() < 4 * tolerance * max(expected.abs().max().item(), 1.0)


@pytest.mark.parametrize("keywords", FEATURES.values(), ids=FEATURES)
def test_the_reference_equals_one_query_at_a_time(keywords: dict[str, Any]) -> None:
    rows = [(1, 75), (1, 1), (6, 90), (5, 5)]
    batch, dense = make(rows, heads=6, head_dim=16, block_tokens=8, **keywords)
    assert_near(batch.run(), naive(batch, dense), torch.float32)


def test_the_reference_scales_what_a_float8_cache_holds() -> None:
    batch, dense = make([(1, 30), (4, 20)], head_dim=16, is_fp8=True, k_scale=0.5, v_scale=2.0)
    assert_near(batch.run(), naive(batch, dense), torch.float32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head_dim": 264}, "head_dim=264 must be a multiple of 4"),
        ({"block_tokens": 4}, "blocks of 4 tokens"),
        ({"heads": 3}, "3 heads do not share 2 kv heads"),
        ({"dtype": torch.float64}, "q is torch.float64"),
        ({"window": 0}, "window=0 must be above 0"),
        ({"version": 3}, "version=3 is not known"),
        ({"window": 9, "causal": False}, "window=9 must be above 0 and causal"),
    ],
)
def test_what_the_kernels_cannot_do_is_refused(change: dict[str, Any], message: str) -> None:
    batch, _ = make([(1, 3)], **change)
    with pytest.raises(ValueError, match=message):
        batch.run()


@pytest.mark.parametrize(
    ("index", "change", "message"),
    [
        (2, lambda x: x[:, :, 1:], r"value_cache \[6, 2, 63, 16\] with strides"),
        (3, lambda x: x.long(), "table torch.int64"),
        (4, lambda x: x[1:], "2 tokens, but 1 token_rows"),
        (7, lambda x: x.int(), "positions torch.int32 int64"),
        (8, lambda x: x.half(), "out is torch.float16"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(index: int, change: Any, message: str) -> None:
    batch, _ = make([(2, 3)])
    batch.tensors[index] = change(batch.tensors[index])
    with pytest.raises(ValueError, match=message):
        batch.run()


def test_sinks_of_another_dtype_are_refused() -> None:
    batch, _ = make([(1, 3)])
    with pytest.raises(ValueError, match=r"sinks of torch.bfloat16 \[8\] must be float32"):
        batch.run(sinks_H=torch.zeros(8, dtype=torch.bfloat16))


@pytest.mark.parametrize("name", ["block_tokens", "local_blocks", "vertical_stride"])
def test_a_sparse_pattern_of_nothing_is_refused(name: str) -> None:
    sizes = {"block_tokens": 16, "local_blocks": 1, "vertical_stride": 2, name: 0}
    with pytest.raises(ValueError, match=f"{name}=0"):
        BlockSparse(**sizes)


def check_gpu(rows: Rows, *, version: int | None = None, **shape: Any) -> None:
    batch, _ = make(rows, **shape)
    expected = batch.run().clone()
    assert_near(batch.to("cuda").run(version=version), expected, batch.tensors[0].dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("keywords", FEATURES.values(), ids=FEATURES)
@pytest.mark.parametrize("rows", [DECODE, MIXED], ids=["decode", "mixed"])
@pytest.mark.parametrize("version", [1, 2])
def test_a_gpu_equals_the_reference(rows: Rows, keywords: dict[str, Any], version: int) -> None:
    check_gpu(rows, version=version, **keywords)


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [64, 80, 96, 112, 120, 128, 192, 256])
@pytest.mark.parametrize("block_tokens", [8, 16, 32])
def test_a_gpu_knows_every_head_dim_and_block(head_dim: int, block_tokens: int) -> None:
    rows, shape = [(1, 90), (7, 560)], {"head_dim": head_dim, "block_tokens": block_tokens}
    check_gpu(rows, dtype=torch.float32, **shape)
    check_gpu(rows, dtype=torch.bfloat16, version=2, **shape)
    if head_dim % 16 == 0:
        check_gpu(rows, dtype=torch.float16, is_fp8=True, k_scale=0.5, v_scale=2.0, **shape)


@pytest.mark.gpu
@pytest.mark.parametrize("heads", [(1, 1), (3, 3), (5, 1), (8, 1), (24, 2), (40, 2), (71, 1)])
@pytest.mark.parametrize("rows", [[(1, 33), (1, 520)], [(21, 50), (1, 9), (2, 2)]])
def test_a_gpu_knows_every_group_of_heads(heads: tuple[int, int], rows: Rows) -> None:
    check_gpu(rows, heads=heads[0], kv_heads=heads[1])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("is_fp8", [False, True])
@pytest.mark.parametrize("rows", [DECODE, MIXED], ids=["decode", "mixed"])
def test_a_gpu_knows_every_dtype(dtype: torch.dtype, is_fp8: bool, rows: Rows) -> None:
    check_gpu(rows, dtype=dtype, is_fp8=is_fp8, head_dim=128)


@pytest.mark.gpu
@pytest.mark.parametrize("window", [None, 100])
def test_results_of_version_1_have_the_same_bits_however_tokens_are_batched(
    window: int | None,
) -> None:
    batch, _ = make([(40, 1100), (3, 700)], dtype=torch.bfloat16, window=window)
    batch = batch.to("cuda")
    together = batch.run(version=1).clone()
    q_THD, keys, values, table, rows, table_rows, lens, positions, out_THD = batch.tensors
    for token in range(len(rows)):
        one = slice(token, token + 1)
        tensors = [q_THD[one], keys, values, table, rows[one], table_rows, lens, positions[one]]
        alone = Batch([*tensors, out_THD[one]], batch.keywords, []).run(version=1, max_query_len=1)
        assert torch.equal(alone[0], together[token])


@pytest.mark.gpu
def test_a_recorded_graph_holds_for_all_lengths_below_its_bound() -> None:
    rows = [(1, 1500), (1, 3), (1, 800), (1, 512)]
    batch, _ = make(rows, dtype=torch.float32, max_context_len=8192)
    device = batch.to("cuda")
    device.run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        device.run()
    for lens in ([1500, 3, 800, 512], [1, 2, 513, 64], [1025, 1, 17, 511]):
        positions = torch.tensor(lens) - 1
        batch.tensors[7].copy_(positions)
        device.tensors[7].copy_(positions)
        graph.replay()
        assert_near(device.tensors[-1], batch.run(), torch.float32)


@pytest.mark.gpu
def test_no_tokens_are_no_error() -> None:
    batch, _ = make([(1, 3)])
    device = batch.to("cuda")
    for index in (0, 4, 7, 8):
        device.tensors[index] = device.tensors[index][:0]
    assert device.run().shape == (0, 8, 64)
