"""Prefill attention whose results depend on nothing but a token's own context."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from octavo_kernels.hopper_prefill import prefill
from prefill_case import Case, expected


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["plain", "options", "float8"])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_a_batch_invariant_token_knows_nothing_of_others(head_dim: int, kind: str) -> None:
    """Alone or beside others, in whatever chunk, however much longer a context might be."""
    case = Case(query_lens=[8192], prefixes=[0], head_dim=head_dim, device="cuda")
    options: dict[str, Any] = {}
    if kind == "options":
        sinks_H = torch.linspace(-2, 9, 8, device="cuda")
        options = {"window": 2500, "softcap": 9.0, "sinks_H": sinks_H}
    elif kind == "float8":
        case.cache_dtype = torch.float8_e4m3fn
    whole = case.arguments()
    prefill(**whole, **options, batch_invariant=True)
    relative = float((whole["out_THD"][:8192].float() - expected(whole | options)[:8192]).norm())
    assert relative < 1e-2 * float(whole["out_THD"][:8192].float().norm())

    def rows(*spans: tuple[int, int]) -> dict[str, Any]:
        """The same row's tokens of those spans, as so many rows of a step."""
        lens = [end - first for first, end in spans]
        starts_R1 = torch.tensor([0, *np.cumsum(lens).tolist()], dtype=torch.int32, device="cuda")
        return whole | {
            "q_THD": torch.cat([whole["q_THD"][first:end] for first, end in spans]),
            "out_THD": torch.full((sum(lens), 8, head_dim), torch.nan, device="cuda").to(
                case.dtype
            ),
            "table_rows_R": whole["table_rows_R"].repeat(len(spans)),
            "query_starts_R1": starts_R1,
            "context_lens_R": torch.tensor([end for _, end in spans]).to(starts_R1),
            "query_lens_R": np.array(lens, np.int32),
        }

    steps = [[(n - 1, n)] for n in (1, 200, 1024, 1025, 1100, 2048, 2049, 3000, 6143, 8191, 8192)]
    steps += [[(8191, 8192), (100, 101), (4095, 4096)], [(7000, 7100), (8100, 8192)]]
    steps += [[(n, n + 1) for n in range(8000, 8064)], [(n, n + 3) for n in range(900, 1200, 3)]]
    steps += [[(n, n + 500) for n in range(0, 8000, 500)], [(1000, 6000)]]
    for spans in steps:
        for most in (spans[-1][1] if len(spans) == 1 else 8192, 131_072):
            step = rows(*spans)
            prefill(**step, **options, max_context=most, batch_invariant=True)
            want = torch.cat([whole["out_THD"][first:end] for first, end in spans])
            assert torch.equal(step["out_THD"], want), (spans[:3], most)
    # Else this proves nothing: without it parts follow from the launch.
    step = rows((8191, 8192))
    prefill(**step, **options, max_context=8192)
    assert not torch.equal(step["out_THD"][0], whole["out_THD"][8191])
