from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from octavo_kernels.hopper_decode import decode, reference


@dataclass
class Case:
    """Random rows over a shuffled cache, of which all that no row sees is NaN."""

    q_RHD: Tensor
    cache: Tensor
    table_SB: Tensor
    table_rows_R: Tensor
    context_lens_R: Tensor
    keywords: dict[str, Any]

    def attend(self) -> Tensor:
        out_RHD = torch.full_like(self.q_RHD, float("nan"))
        decode(*self.inputs(), out_RHD, **self.keywords)
        return out_RHD

    def expected(self) -> Tensor:
        out_RHD = torch.empty_like(self.q_RHD, dtype=torch.float32)
        reference.decode(*self.inputs(), out_RHD, **self.keywords)
        return out_RHD

    def inputs(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        return self.q_RHD, self.cache, self.table_SB, self.table_rows_R, self.context_lens_R


def make_case(
    lens: list[int],
    *,
    heads: int = 8,
    kv_heads: int = 2,
    head_dim: int = 128,
    block_tokens: int = 16,
    dtype: torch.dtype = torch.bfloat16,
    cache_dtype: torch.dtype | None = None,
    device: str = "cuda",
    seed: int = 0,
    q_std: float = 1.0,
    gap_bytes: int = 0,
    **keywords: Any,
) -> Case:
    random = torch.Generator(device).manual_seed(seed)
    cache_dtype = cache_dtype or dtype
    window = keywords.get("window")
    counts = [-(-length // block_tokens) for length in lens]
    order = torch.randperm(sum(counts) + 3, generator=random, device=device).int()
    slots = torch.randperm(len(lens) + 2, generator=random, device=device)[: len(lens)].int()
    table_SB = torch.full((len(lens) + 2, max(counts) + 1), int(order[-1]), device=device).int()
    page = 2 * kv_heads * block_tokens * head_dim
    raw = torch.full(
        (len(order), page * cache_dtype.itemsize + gap_bytes), 0xFF, dtype=torch.uint8
    ).to(device)
    pages = raw[:, : page * cache_dtype.itemsize].view(cache_dtype)
    cache = pages.view(len(order), 2, kv_heads, block_tokens, head_dim)
    taken = 0
    for length, count, slot in zip(lens, counts, slots.tolist(), strict=True):
        blocks_B = order[taken : taken + count]
        table_SB[slot, :count] = blocks_B
        taken += count
        positions_C = torch.arange(max(length - window, 0) if window else 0, length, device=device)
        values = torch.randn(
            (len(positions_C), 2, kv_heads, head_dim), generator=random, device=device
        )
        where = (blocks_B[positions_C // block_tokens].long(), positions_C % block_tokens)
        bits = cache.view(torch.uint8 if cache_dtype.itemsize == 1 else torch.int16)
        bits[where[0], :, :, where[1]] = values.to(cache_dtype).view(bits.dtype)
    q_all = torch.randn((len(lens), heads + 3, head_dim), generator=random, device=device) * q_std
    if keywords.get("sinks_H"):
        keywords["sinks_H"] = torch.randn(heads, generator=random, device=device)
    keywords.setdefault("scale", head_dim**-0.5)
    return Case(
        q_RHD=q_all.to(dtype)[:, :heads],
        cache=cache,
        table_SB=table_SB,
        table_rows_R=slots,
        context_lens_R=torch.tensor(lens, dtype=torch.int32, device=device),
        keywords=keywords,
    )


def assert_right(case: Case, tolerance: float = 6e-3) -> None:
    found, expected = case.attend().float(), case.expected()
    assert bool(found.isfinite().all()), "some output was not written, or is not a number"
    error = (found - expected).norm() / expected.norm()
    assert error < tolerance, f"relative error {error:.2e}"
    by_row = (found - expected).flatten(1).norm(dim=1) / expected.flatten(1).norm(dim=1)
    assert by_row.max() < 2 * tolerance, f"row {int(by_row.argmax())}: {by_row.max():.2e}"


def ragged(rows: int, longest: int, seed: int = 1) -> list[int]:
    random = torch.Generator().manual_seed(seed)
    return (torch.randint(1, longest + 1, (rows,), generator=random)).tolist()


LENGTHS = {
    "one token": [1],
    "one row": [1000],
    "a full block": [16],
    "a token more": [17],
    "padding": [700, 1, 1, 1, 513, 1],
    "few": ragged(5, 3000),
    "many": ragged(200, 300),
    "more than threads": ragged(700, 60),
    "long": [20000, 3],
}


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("lens", LENGTHS.values(), ids=LENGTHS)
def test_rows_of_any_lengths_are_right(lens: list[int], head_dim: int) -> None:
    assert_right(make_case(lens, head_dim=head_dim))


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (3, 1), (14, 2), (16, 2), (12, 1), (32, 2)])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_any_group_of_up_to_16_heads_is_right(shape: tuple[int, int], head_dim: int) -> None:
    heads, kv_heads = shape
    for lens in (ragged(3, 900), ragged(150, 200)):
        assert_right(make_case(lens, heads=heads, kv_heads=kv_heads, head_dim=head_dim))


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 8, 13, 33, 34, 70])
def test_any_number_of_rows_is_right(rows: int, head_dim: int) -> None:
    """From eight blocks for one head of a row to rows cut up among warps, on 132 processors."""
    for lens in ([1000 + row for row in range(rows)], [4000, *ragged(rows - 1, 40)]):
        assert_right(make_case(lens, heads=16, kv_heads=8, head_dim=head_dim))


@pytest.mark.gpu
@pytest.mark.parametrize("block_tokens", [8, 16, 32, 64])
@pytest.mark.parametrize(
    ("dtype", "cache_dtype"),
    [
        (torch.bfloat16, torch.bfloat16),
        (torch.float16, torch.float16),
        (torch.bfloat16, torch.float8_e4m3fn),
        (torch.float16, torch.float8_e4m3fn),
    ],
)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_every_dtype_and_block_size_is_right(
    block_tokens: int, dtype: torch.dtype, cache_dtype: torch.dtype, head_dim: int
) -> None:
    types = {"dtype": dtype, "cache_dtype": cache_dtype, "head_dim": head_dim}
    if cache_dtype == torch.float8_e4m3fn:
        types |= {"k_scale": 0.5, "v_scale": 2.0}
    for lens, heads in ((ragged(3, 900), 8), (ragged(150, 200), 24)):
        case = make_case(lens, block_tokens=block_tokens, heads=heads, gap_bytes=64, **types)
        assert_right(case)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "keywords",
    [
        {"window": 1},
        {"window": 100},
        {"window": 128},
        {"softcap": 2.0, "q_std": 4.0},
        {"sinks_H": True},
        {"window": 77, "softcap": 3.0, "sinks_H": True, "q_std": 3.0},
    ],
)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_window_softcap_and_sinks_are_right(keywords: dict[str, Any], head_dim: int) -> None:
    for lens in ([1500], ragged(5, 900), ragged(150, 300)):
        assert_right(make_case(lens, head_dim=head_dim, **keywords))


@pytest.mark.gpu
@pytest.mark.parametrize("lens", [[0, 0, 700, 0], [0] * 200 + [5, 0, 90], [0, 3] * 150, [0]])
def test_rows_without_context_are_left_out(lens: list[int]) -> None:
    case = make_case(lens)
    found, expected, there_R = case.attend().float(), case.expected(), case.context_lens_R > 0
    assert bool(found[~there_R].isnan().all())
    assert bool((found[there_R] - expected[there_R]).abs().max() < 2e-2) if max(lens) else True


@pytest.mark.gpu
@pytest.mark.parametrize("transform", [(), ("angles",), ("norms",), ("angles", "norms")])
@pytest.mark.parametrize(
    ("dtype", "cache_dtype"),
    [
        (torch.bfloat16, torch.bfloat16),
        (torch.float16, torch.float16),
        (torch.bfloat16, torch.float8_e4m3fn),
    ],
)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_new_tokens_are_stored_and_seen(
    transform: tuple[str, ...], dtype: torch.dtype, cache_dtype: torch.dtype, head_dim: int
) -> None:
    random = torch.Generator("cuda").manual_seed(0)
    for lens, heads, block_tokens in (([1000], 8, 16), ([1], 6, 8), (ragged(150, 200), 24, 32)):
        case = make_case(
            lens,
            heads=heads,
            block_tokens=block_tokens,
            dtype=dtype,
            cache_dtype=cache_dtype,
            head_dim=head_dim,
        )

        def draw(*shape: int, x: torch.dtype = dtype) -> Tensor:
            return torch.randn(shape, generator=random, device="cuda").to(x)

        angles_RF = draw(len(lens), head_dim // 2, x=torch.float32)
        last_R = case.context_lens_R.long() - 1
        blocks_R = case.table_SB[case.table_rows_R.long(), last_R // block_tokens].long()
        bits = case.cache.view(torch.uint8)
        bits[blocks_R, :, :, last_R % block_tokens] = 0xFF
        case.keywords |= {
            "k_RKD": draw(len(lens), 4, head_dim)[:, :2],
            "v_RKD": draw(len(lens), 2, head_dim),
            "slots_R": blocks_R * block_tokens + last_R % block_tokens,
        }
        if "angles" in transform:
            case.keywords |= {"cos_RF": angles_RF.cos().to(dtype)}
            case.keywords |= {"sin_RF": angles_RF.sin().to(dtype)}
        if "norms" in transform:
            case.keywords |= {"q_norm_D": draw(head_dim), "k_norm_D": draw(head_dim)}
        before = case.cache.clone()
        expected_RHD = case.expected()
        expected_cache = case.cache.clone()
        case.cache.copy_(before)
        found_RHD = case.attend().float()
        error = (found_RHD - expected_RHD).norm() / expected_RHD.norm()
        assert error < 8e-3, f"relative error {error:.2e}"
        is_same = case.cache.view(torch.uint8) == expected_cache.view(torch.uint8)
        is_new = torch.zeros_like(is_same)
        is_new[blocks_R, :, :, last_R % block_tokens] = True
        assert bool(is_same[~is_new].all())
        # Sums of squares are added up in another order than in the reference.
        assert is_same[is_new].float().mean() > (0.97 if "norms" in transform else 0.999)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_a_step_sees_what_the_step_before_has_stored(rows: int) -> None:
    """In one graph, where its kernels start early."""
    num_steps, start = 6, 61
    case = make_case([start + num_steps] * rows, heads=16, kv_heads=4)
    k_SRKD, v_SRKD = torch.randn((2, num_steps, rows, 4, 128), device="cuda").bfloat16()
    q_SRHD = torch.randn((num_steps, rows, 16, 128), device="cuda").bfloat16()
    lens_R, lines_R = case.context_lens_R, case.table_rows_R.long()
    block_tokens = case.cache.shape[3]
    positions_S = torch.arange(start, start + num_steps, device="cuda")
    blocks_SR = case.table_SB[lines_R][:, positions_S // block_tokens].long().T.contiguous()
    slots_SR = blocks_SR * block_tokens + (positions_S % block_tokens)[:, None]
    expected_cache = case.cache.clone()
    for step in range(num_steps):
        at = (blocks_SR[step], slice(None), slice(None), slots_SR[step] % block_tokens)
        expected_cache[at] = torch.stack((k_SRKD[step], v_SRKD[step]), dim=1)
        case.cache[at] = float("nan")
    inputs = (case.cache, case.table_SB, case.table_rows_R, lens_R)
    found_SRHD = torch.empty_like(q_SRHD)
    other = torch.zeros(1, device="cuda")

    def run() -> None:
        lens_R.fill_(start)
        for step in range(num_steps):
            lens_R.add_(1)
            other.add_(1)  # a launch between what writes the lengths and what reads them early
            decode(
                q_SRHD[step],
                *inputs,
                found_SRHD[step],
                scale=0.1,
                k_RKD=k_SRKD[step],
                v_RKD=v_SRKD[step],
                slots_R=slots_SR[step],
            )

    decode(q_SRHD[0], expected_cache, *inputs[1:], found_SRHD[0], scale=0.1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    found_SRHD.fill_(float("nan"))
    graph.replay()
    expected_RHD = torch.empty_like(q_SRHD[0], dtype=torch.float32)
    for step in range(num_steps):
        lens_R.fill_(start + step + 1)
        reference.decode(q_SRHD[step], expected_cache, *inputs[1:], expected_RHD, scale=0.1)
        error = (found_SRHD[step].float() - expected_RHD).norm() / expected_RHD.norm()
        assert error < 8e-3, f"step {step}: relative error {error:.2e}"


@pytest.mark.gpu
def test_scores_far_apart_do_not_overflow() -> None:
    assert_right(make_case(ragged(20, 900), q_std=60.0), tolerance=1e-2)


@pytest.mark.gpu
def test_a_graph_serves_other_lengths_and_gives_the_same_bits_each_time() -> None:
    case, other = make_case(ragged(40, 900)), make_case(ragged(40, 900, seed=2), seed=3)
    case.attend()
    out_RHD = torch.empty_like(case.q_RHD)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        decode(*case.inputs(), out_RHD, **case.keywords)
    # The two cases have caches of their own; the graph's tables and lengths change in place.
    case.context_lens_R.copy_(torch.minimum(case.context_lens_R, other.context_lens_R))
    results = []
    for _ in range(20):
        out_RHD.fill_(float("nan"))
        graph.replay()
        results.append(out_RHD.clone())
    assert all(torch.equal(result, results[0]) for result in results)
    error = (results[0].float() - case.expected()).norm() / case.expected().norm()
    assert error < 6e-3


def test_on_a_cpu_it_is_attention_over_each_rows_context() -> None:
    case = make_case([5, 17, 1], device="cpu", dtype=torch.float32, head_dim=64, block_tokens=8)
    found = case.attend()
    for row, length in enumerate(case.context_lens_R.tolist()):
        blocks_B = case.table_SB[case.table_rows_R[row].long()].long()
        pages = case.cache[blocks_B].permute(1, 2, 0, 3, 4).flatten(2, 3)
        keys_HCD, values_HCD = pages[:, :, :length].repeat_interleave(4, dim=1)
        expected = torch.nn.functional.scaled_dot_product_attention(
            case.q_RHD[row].unsqueeze(1), keys_HCD, values_HCD
        )
        torch.testing.assert_close(found[row], expected.squeeze(1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cache": (4, 2, 3, 16, 64)}, "does not fit queries"),
        ({"cache": (4, 2, 2, 16, 32)}, "does not fit queries"),
        ({"out": (3, 8, 32)}, "must be alike"),
        ({"table_rows": (4,)}, "do not fit 3 rows"),
        ({"slots_R": torch.zeros(3).long()}, "must be given together"),
        ({"q_norm_D": torch.zeros(64)}, "give k and v too"),
        ({"window": 0}, "window=0"),
        ({"softcap": -1.0}, "softcap=-1.0"),
        ({"sinks_H": torch.zeros(4)}, "one for each of 8 heads"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(change: dict[str, Any], message: str) -> None:
    shapes = {"q": (3, 8, 64), "cache": (4, 2, 2, 16, 64), "out": (3, 8, 64), "table_rows": (3,)}
    keywords = {"scale": 1.0} | {k: v for k, v in change.items() if k not in shapes}
    shapes |= {k: v for k, v in change.items() if k in shapes}
    with pytest.raises(ValueError, match=message):
        decode(
            torch.zeros(shapes["q"]),
            torch.zeros(shapes["cache"]),
            torch.zeros((3, 4), dtype=torch.int32),
            torch.zeros(shapes["table_rows"], dtype=torch.int32),
            torch.ones(3, dtype=torch.int32),
            torch.zeros(shapes["out"]),
            **keywords,
        )
