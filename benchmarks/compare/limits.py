"""The least time that an H200 needs for a workload, by bytes and operations alone.

Rates are measured ones: a copy, an 8192^3 product, causal attention as good kernels do it. Parts
follow one another; an engine that computes prompts while it reads caches may come below.
"""

from __future__ import annotations

from benchmarks.compare.shapes import Shape
from benchmarks.compare.workloads import Workload

BYTES_PER_SECOND = 4.3e12
FLOPS_PER_SECOND = 790e12
ATTENTION_FLOPS_PER_SECOND = 600e12


def limit_seconds(shape: Shape, workload: Workload) -> float | None:
    """In the unit of ``measure``; None for start-up, which no such limit bounds."""
    requests, prompt, output = workload.requests, workload.prompt_tokens, workload.output_tokens
    match workload.group:
        case "startup":
            return None
        case "decode":
            return _products(shape, requests) + _cache(shape, requests * prompt)
        case "prefill":
            return _prompt(shape, prompt)
        case _:
            return (
                requests * _prompt(shape, prompt)
                + output * _products(shape, requests)
                + _cache(shape, requests * output * (prompt + output / 2))
            )


def _products(shape: Shape, rows: int) -> float:
    """One decode step without attention: read the weights, or compute with them."""
    parameters = shape.body_parameters + shape.head_parameters
    return max(2 * parameters / BYTES_PER_SECOND, 2 * parameters * rows / FLOPS_PER_SECOND)


def _cache(shape: Shape, positions: float) -> float:
    return positions * shape.kv_bytes_per_token / BYTES_PER_SECOND


def _prompt(shape: Shape, tokens: int) -> float:
    products = 2 * (shape.body_parameters * tokens + shape.head_parameters) / FLOPS_PER_SECOND
    width = shape.num_heads * shape.head_dim * shape.num_layers
    return products + 4 * width * tokens**2 / 2 / ATTENTION_FLOPS_PER_SECOND
