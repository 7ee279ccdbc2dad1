"""Rank rows on the device: who has them, who gives them up, and what is copied."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from octavo.config import LoRAConfig
from octavo.config.lora import MAX_RANK_ROWS
from octavo.errors import ConfigError, OctavoError
from octavo.layers.adapted import AdapterRows
from octavo.messages import AdapterHead, PackedAdapter
from octavo.residency.adapters import KnownAdapters
from octavo.residency.pool import provide_all
from octavo.steps.loads import Span
from octavo_kernels.lora import MAX_POOL_ROWS, num_splits
from octavo_registry.sites import Shard


def adapter(name: str, rank: int) -> PackedAdapter:
    head = AdapterHead(content_hash=name, rank=rank, dtype="float32", shapes={})
    return PackedAdapter(head, memoryview(b""))


def known_of(num_rows: int, **ranks: int) -> KnownAdapters:
    known = KnownAdapters(num_rows, num_rows)
    for name, rank in ranks.items():
        known.add(adapter(name, rank))
    return known


def provide(known: KnownAdapters, name: str) -> Span | None:
    places = provide_all(known.needs(name))
    return None if places is None else places["adapter"]


def loads(known: KnownAdapters) -> list[tuple[str, Span]]:
    return [(item.head.content_hash, span) for span, item in known.pool.take_loads()]


def test_adapters_of_any_rank_lie_side_by_side_and_are_copied_once() -> None:
    known = known_of(16, a=4, b=9, c=3)
    assert [provide(known, name) for name in "abca"] == [(0, 4), (4, 9), (13, 3), (0, 4)]
    assert loads(known) == [("a", (0, 4)), ("b", (4, 9)), ("c", (13, 3))]
    assert loads(known) == []
    assert provide_all(known.needs("")) == {}


def test_the_idle_one_that_was_used_longest_ago_gives_way_and_a_running_one_never() -> None:
    known = known_of(12, a=4, b=4, c=4, d=4)
    for name in "abc":
        provide(known, name)
    known.pool.pin("a")
    provide(known, "b")  # so that c is older
    assert provide(known, "d") == (8, 4)
    assert provide(known, "c") == (4, 4)
    for name in "cd":
        known.pool.pin(name)
    assert provide(known, "b") is None
    known.pool.unpin("c")
    assert provide(known, "b") == (4, 4)


def test_nothing_is_evicted_in_vain() -> None:
    """Idle rows on both sides of a running adapter's do not make one run of six."""
    known = known_of(12, a=4, b=4, c=4, large=6)
    for name in "abc":
        provide(known, name)
    known.pool.pin("b")
    known.pool.take_loads()
    assert provide(known, "large") is None
    assert [provide(known, name) for name in "ac"] == [(0, 4), (8, 4)]
    assert loads(known) == []
    known.pool.unpin("b")
    assert provide(known, "large") == (0, 6)


def test_what_is_evicted_before_a_step_is_not_copied_in_it() -> None:
    known = known_of(4, a=4, b=4)
    provide(known, "a")
    provide(known, "b")
    assert loads(known) == [("b", (0, 4))]


def test_what_is_removed_lives_until_its_sequences_have_ended_and_is_named_no_more() -> None:
    known = known_of(8, a=8)
    known.add(adapter("a", 8))  # another client has it too
    known.begin("a", 2)
    known.remove("a")
    assert known.refusal("a") is None
    known.remove("a")
    assert "unloaded" in str(known.refusal("a"))
    known.end("a")
    assert provide(known, "a") == (0, 8)
    known.end("a")
    assert len(known) == 0
    known.add(adapter("b", 8))
    assert provide(known, "b") == (0, 8)
    known.remove("a")  # nobody has it; nothing happens
    assert "unloaded" in str(known.refusal("a"))
    assert known.refusal("") is None


def test_after_a_fault_all_that_the_device_should_hold_is_copied_again() -> None:
    known = known_of(8, a=4, b=4, c=1)
    provide(known, "a")
    provide(known, "b")
    known.pool.take_loads()
    known.pool.after_fault(reload=True)
    assert loads(known) == [("a", (0, 4)), ("b", (4, 4))]


def test_a_rank_that_the_pool_never_holds_is_refused() -> None:
    with pytest.raises(OctavoError, match="rank 9 is above 8"):
        KnownAdapters(8, 8).add(adapter("a", 9))


def test_a_bound_on_ranks_above_the_pool_is_an_error_where_there_is_a_pool() -> None:
    with pytest.raises(ConfigError, match="max_lora_rank=64 is above the pool's 32 rank rows"):
        LoRAConfig(enable_lora=True, max_loras=2, max_lora_rank=64)
    assert LoRAConfig(enable_lora=True, lora_pool_rank=64, max_lora_rank=64).highest_rank == 64
    assert LoRAConfig(max_loras=2, max_lora_rank=64).num_rank_rows == 0


def test_the_largest_pool_is_what_the_kernels_take() -> None:
    assert MAX_RANK_ROWS == MAX_POOL_ROWS


@pytest.mark.parametrize("batch_invariant", [False, True])
def test_the_sums_of_a_step_are_planned_as_they_are_made(batch_invariant: bool) -> None:
    rows = AdapterRows(32, 17, batch_invariant=batch_invariant)
    for name, inputs in (("narrow", 64), ("wide", 4096), ("middling", 512)):
        parts = {name: [Shard.whole(8)]}
        like = (torch.float32, torch.device("cpu"))
        rows.add(nn.Module(), Shard.whole(inputs), parts, shape=(inputs, 8), like=like)
    shrunk = 4 * num_splits(32, 4096, 16, batch_invariant) * 32 * 32
    in_rooms = 2 * 4 * 16 * 32 * 32  # of the one launch that a product of few tokens may be
    assert rows.sums_bytes(32) == (shrunk if batch_invariant else max(shrunk, in_rooms))
    shrunk_of_many = 4 * num_splits(8192, 4096, 64, batch_invariant) * 8192 * 32
    assert rows.sums_bytes(8192) == shrunk_of_many
