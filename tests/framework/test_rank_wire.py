"""What crosses to ranks' processes and back comes out as it was."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import msgspec
import numpy as np

from octavo.cache.budget import GIB, DeviceMemory
from octavo.cache.groups import make_layout
from octavo.execution.agreement import RankFacts
from octavo.steps.layout import StateLayout
from octavo.steps.plan import LogprobArrays, StepResult, TokenMasks
from octavo.worker.wire import (
    ENCODER,
    AllocateRank,
    FromRank,
    MaskStep,
    RankMeasured,
    StepRan,
    ToRank,
)
from octavo_registry.cache import CacheSpec
from octavo_registry.executor import ExecutorFacts
from octavo_registry.ranks import Ranks

FULL = CacheSpec.full(kv_heads=2, head_dim=16, dtype="float32")
WINDOW = CacheSpec.sliding(kv_heads=2, head_dim=16, dtype="float32", window=9)
NOT_SENT = {"vectors"}
"""What a rank never has."""


def crossed(message: Any, kind: Any) -> Any:
    return msgspec.msgpack.decode(ENCODER.encode(message), type=kind)


def assert_same(found: Any, expected: Any) -> None:
    if isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype
        assert np.array_equal(found, expected)
        assert found.flags.writeable
    elif isinstance(expected, StepResult | LogprobArrays | TokenMasks):
        for field in fields(expected):
            assert_same(getattr(found, field.name), getattr(expected, field.name))
    else:
        assert found == expected


def ints(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.int32).reshape(shape)


def test_results_with_all_that_they_may_have() -> None:
    logprobs = LogprobArrays(
        token_ids=ints(4, 3), logprobs=np.full((4, 3), -np.inf, np.float32), ranks=ints(4)
    )
    result = StepResult(
        tokens_RK=ints(2, 2),
        counts_R=ints(2),
        logprobs=logprobs,
        prompt_logprobs=logprobs,
        unusable_RK=ints(2, 2),
    )
    unset = {field.name for field in fields(result) if getattr(result, field.name) is None}
    assert unset == NOT_SENT
    assert_same(crossed(StepRan.of(result), FromRank).result(), result)
    bare = StepResult(tokens_RK=np.zeros((0, 1), np.int32))
    assert_same(crossed(StepRan.of(bare), FromRank).result(), bare)


def test_masks() -> None:
    masks = TokenMasks(rows_M=ints(2), bits_MW=ints(2, 5) - 3, put_off_P=ints(1))
    assert_same(crossed(MaskStep.of(masks), ToRank).masks(), masks)


def test_facts_and_what_is_agreed() -> None:
    facts = RankFacts(
        ranks=Ranks(tp_rank=1, tp_size=2),
        memory=DeviceMemory.of_host(8 * GIB),
        workspace_bytes=5,
        num_slots=7,
        specs={"a": FULL, "b": WINDOW},
        page_bytes={FULL: 64, WINDOW: 32},
        most_recorded_queries=1,
        masks_on_device=True,
    )
    found = crossed(RankMeasured.of(facts), FromRank).facts(facts.ranks, sharing=2)
    assert found == replace(facts, memory=DeviceMemory.of_host(4 * GIB))
    assert list(found.specs) == ["a", "b"]
    layout = make_layout(facts.specs, facts.page_bytes.__getitem__, 4)
    state = StateLayout(
        num_slots=7, max_model_len=90, max_blocks=layout.table_blocks(90), num_groups=2
    )
    agreed = ExecutorFacts(
        layout=layout,
        state=state,
        num_blocks=11,
        num_swap_blocks=3,
        num_lines=4,
        num_swap_lines=2,
        max_model_len=90,
        most_recorded_queries=1,
    )
    again = crossed(AllocateRank.of(agreed), ToRank).agreed()
    assert vars_of(again.state) == vars_of(state)
    assert replace(again, state=state) == agreed


def vars_of(state: StateLayout) -> dict[str, Any]:
    return {name: value for name, value in vars(state).items() if isinstance(value, int)}
