"""Blocks of encoded media: filled by a request's first step, found again by content, and freed."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from octavo.cache.groups import make_layout
from octavo.errors import CacheError
from octavo.messages import EngineRequest, MediaInput, TokenSampling
from octavo.scheduling.media import MediaScheduler
from octavo_registry.cache import CacheSpec
from scheduling_cases import FULL, MAX_CROSS_ROWS, MEDIA_ROWS, Case, sound
from scheduling_world import World

SAMPLING = TokenSampling(seed=0, max_tokens=6)


def world(num_blocks: int = 60, mode: str = "recompute") -> World:
    return World(Case("cross", mode, "fcfs", 2, num_blocks=num_blocks), Counter())


def test_a_sound_that_is_kept_is_neither_encoded_nor_filled_again() -> None:
    one = world()
    prompts = [1, 2, 3], [1, 9, 9]
    assert sound(1, 3) == sound(1, len(prompts[1]))
    for prompt in prompts:
        one.add(prompt, 1, SAMPLING)
        one.drain()
    assert one.device.filled == [sound(1, 3).cross_rows]
    assert one.scheduler.media.pool.num_loads == 1
    one.scheduler.placement.pool.forget_all()
    one.add(prompts[0], 1, SAMPLING)
    one.drain()
    assert len(one.device.filled) == 2
    assert one.scheduler.media.pool.num_loads == 1, "its rows were still encoded"


def test_a_step_fills_rows_of_as_many_as_there_is_room_for() -> None:
    one = world()
    for head in (3, 4, 5):
        one.add([head, 2], 1, SAMPLING)
        one.add([head, 3], 1, SAMPLING)
    one.drain()
    assert sum(one.device.filled) > MEDIA_ROWS
    assert MAX_CROSS_ROWS < max(one.device.filled) <= MEDIA_ROWS


def test_a_step_fills_no_more_rows_than_there_is_room_for() -> None:
    media = MediaScheduler(num_rows=20, budget=20, max_cross_rows=MAX_CROSS_ROWS)
    item = sound(3, 4)
    rows = SimpleNamespace(cross_due_S=np.array([True]))
    hears = SimpleNamespace(slot=0, cross=item, request=SimpleNamespace(media=[item]))
    for _ in range(2):
        media.begin_step()
        assert media.clip(rows, hears, 0, 4) == 4
        assert media.clip(rows, hears, 0, 4) == 0, "its rows are kept, but filled again"
        media.take_loads()
    assert media.pool.num_loads == 1


def test_continuations_share_the_blocks_of_what_they_hear() -> None:
    one = world()
    one.add([1, 2, 3, 4, 5, 6], 3, SAMPLING)
    for _ in range(4):
        one.step()
    tables = one.scheduler.placement.tables
    slots = [each.slot for each in one.scheduler.sequences.values()]
    heard = {tuple(tables.held(slot)[1].tolist()) for slot in slots}
    assert len(slots) == 3
    assert len(heard) == 1
    one.drain()
    assert len(one.device.filled) == 1


def test_a_preempted_sequence_finds_its_sound_again_under_both_modes() -> None:
    for mode in ("recompute", "swap"):
        one = world(mode=mode)
        one.add([1, 2, 3, 4, 5], 1, TokenSampling(seed=0, max_tokens=12))
        for _ in range(5):
            one.step()
        one.preempt(0)
        one.drain()
        assert len(one.device.filled) == 1, mode


def test_a_continuation_shares_no_blocks_that_are_still_to_be_filled() -> None:
    one = world(mode="swap", num_blocks=100)
    sampling = TokenSampling(seed=0, max_tokens=20)
    one.add([4, 4], 1, sampling)
    for other in range(4):
        one.add([3, other], 1, sampling)
    one.add([5, 6, 7], 2, sampling)
    for _ in range(12):
        one.step()
    follower = one.scheduler.sequences[one.next_id - 1]
    assert follower.slot < 0, "all slots are taken"
    tables = one.scheduler.placement.tables
    heard = [
        tables.held(each.slot)[1] for each in one.scheduler.sequences.values() if each.slot >= 0
    ]
    one.preempt(5)  # its leader, which comes back behind the first: one of them is filled a step
    one.preempt(0)
    for other in range(1, 5):
        one.abort(other)
    tables.pool.forget_all()
    one.device.pages[np.concatenate(heard)] = -3
    one.drain()
    assert one.scheduler.placement.num_swaps == 2


def test_a_step_that_encodes_is_none_of_those_that_are_recorded_and_repeated() -> None:
    one = World(Case("full", "recompute", "fcfs", 3), Counter())
    scheduler, pool = one.scheduler, one.scheduler.placement.pool
    request = EngineRequest(
        request_id="a", sequences=(0,), prompt_token_ids=[1, 2], sampling=SAMPLING
    )
    item = MediaInput(content_hash="00", spans=((22, 4),), tensors={})
    scheduler.add(request)
    scheduler.schedule()
    scheduler.add(
        msgspec.structs.replace(
            request, sequences=(1,), prompt_token_ids=list(range(30)), media=(item,)
        )
    )
    scheduler.schedule()
    scheduler.schedule()
    pool.allocate(pool.num_available)
    plan, _ = scheduler.schedule() or pytest.fail("nothing to do")
    assert scheduler.placement.num_preemptions == 1, "the row whose item it encodes has left"
    assert plan.num_tokens == 1
    assert [each.item for each in plan.encode] == [item]
    assert not plan.is_decode


def test_a_step_that_is_not_planned_after_all_keeps_no_rows_from_others() -> None:
    one = World(Case("full", "recompute", "priority", 3), Counter())
    scheduler, pool = one.scheduler, one.scheduler.placement.pool
    text = list(range(28))
    one.add(text, 1, SAMPLING)
    one.drain()

    def add(sequence: int, prompt: list[int], run: tuple[int, int], priority: int) -> None:
        item = MediaInput(content_hash=f"0{sequence}", spans=(run,), tensors={})
        request = EngineRequest(
            request_id="a", sequences=(sequence,), prompt_token_ids=prompt, sampling=SAMPLING,
            media=(item,), priority=priority,
        )  # fmt: skip
        scheduler.add(request)

    add(8, [36] * 30, (11, 15), 5)
    assert scheduler.schedule()
    cached = np.array(list(pool._unreferenced), np.int32)
    pool.share(cached)
    others = pool.allocate(pool.num_available)
    assert scheduler.schedule() is None, "its item is next, and for its tokens there are no blocks"
    pool.release(cached)
    pool.release(others)
    add(9, [*text, *[35] * 16], (28, 15), 0)
    plan, _ = scheduler.schedule() or pytest.fail("the first holds rows, the second blocks")
    assert [each.item.content_hash for each in plan.encode] == ["09"]


@pytest.mark.parametrize(
    ("media", "problem"),
    [
        ((), "has 0 items"),
        ((sound(1, 2), sound(2, 2)), "has 2 items"),
        ((MediaInput(content_hash="00", spans=(), tensors={}, cross_rows=12),), "of 12 rows"),
    ],
)
def test_what_the_model_cannot_read_across_is_refused_by_name(media, problem) -> None:
    one = world()
    request = EngineRequest(
        request_id="a", sequences=(0,), prompt_token_ids=[1], sampling=SAMPLING, media=media
    )
    one.scheduler.add(request)
    (end,) = one.results.take_events().ends
    assert problem in str(end.error)
    assert f"takes 1, of {MAX_CROSS_ROWS}" in str(end.error)


def test_a_model_without_cross_attention_takes_no_such_item() -> None:
    one = World(Case("full", "recompute", "fcfs", 1), Counter())
    request = EngineRequest(
        request_id="a", sequences=(0,), prompt_token_ids=[1], sampling=SAMPLING,
        media=(sound(1, 2),),
    )  # fmt: skip
    one.scheduler.add(request)
    (end,) = one.results.take_events().ends
    assert "this model takes 0" in str(end.error)


def test_media_as_they_are_fill_the_pages_of_all_lanes() -> None:
    media = CacheSpec.media(heads=2, width=8, dtype="float32", rows=50)
    specs = {"a": FULL, "b": FULL, "c": FULL, "m": media}
    sizes = {FULL: 256, media: 128}
    layout = make_layout(specs, sizes.__getitem__, block_tokens=4)
    assert (layout.num_lanes, layout.lane_bytes) == (3, 256)
    assert [group.block_tokens for group in layout.groups] == [4, 3 * 256 // 32]
    assert layout.blocks_for(1, 0) == 1 + 3
    assert layout.table_blocks(4) == 3
    with pytest.raises(CacheError, match="layers m, n: one layer keeps"):
        make_layout({**specs, "n": media}, sizes.__getitem__, block_tokens=4)
    wide = {FULL: 16, media: 128}
    wide_layout = make_layout({"a": FULL, "m": media}, wide.__getitem__, block_tokens=4)
    assert (wide_layout.lane_bytes, wide_layout.table_blocks(4)) == (32, 50)


def test_a_sequence_is_counted_with_all_that_it_hears() -> None:
    cross = CacheSpec.cross(kv_heads=1, head_dim=8, dtype="float32", rows=50)
    layout = make_layout({"a": FULL, "b": cross}, lambda spec: 64, block_tokens=16)
    alone = make_layout({"a": FULL}, lambda spec: 64, block_tokens=16)
    assert layout.blocks_for(1, 0) == alone.blocks_for(1, 0) + 4
    assert layout.table_blocks(17) == 4
    assert layout.table_blocks(100) == alone.table_blocks(100) == 7
