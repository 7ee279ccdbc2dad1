"""Plans as frames: the bytes of usual ones, what is sent once, and frames that nobody has encoded.

That a decoded plan is the plan is shown by every step of the scheduling machine.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from decode_plans import again, decode_plan, ints
from octavo.cache.groups import make_layout
from octavo.errors import FrameError
from octavo.messages import AdapterHead, MediaInput, PackedAdapter, TensorData, TokenSampling
from octavo.steps.layout import StateLayout
from octavo.steps.loads import AdapterLoad, AutomatonLoad, BlockMoves, EncodeItem, RowCuts, Span
from octavo.steps.plan import Attached, Sections, StepPlan
from octavo.steps.plan_codec import HEADER_BYTES, MOST_KEPT, PlanDecoder, PlanEncoder
from octavo.steps.plan_extras import MOST_INLINE_BYTES, Frames
from octavo.steps.recording import Recording, StepKind
from octavo.testing.executor import check_executor
from octavo_kernels.row_features import Work
from octavo_registry import PluginHost
from octavo_registry.cache import CacheSpec
from octavo_registry.executor import ExecutorFacts
from octavo_registry.guided import GuideVocabulary
from plan_crossing import Crossing, assert_same
from scheduling_cases import Case
from scheduling_world import World
from thread_ranks import ThreadRanksPlugin

SPEC = CacheSpec.full(kv_heads=1, head_dim=16, dtype="float32")
LAYOUT = make_layout({"0": SPEC}, lambda _: 64, 16)
STATE = StateLayout(num_slots=300, max_model_len=4096, max_blocks=256, num_groups=1)
FACTS = ExecutorFacts(
    layout=LAYOUT, state=STATE, num_blocks=10, num_swap_blocks=5, max_model_len=4096
)
BIG = MOST_INLINE_BYTES + 4


def crossing() -> Crossing:
    return Crossing(LAYOUT, STATE, FACTS.num_blocks, FACTS.num_swap_blocks)


def full_plan() -> StepPlan:
    """All that a plan may have, small and large."""
    head = AdapterHead(content_hash="a", rank=2, dtype="float32", shapes={"x": (2, 3, 4)})
    vocabulary = GuideVocabulary(
        token_bytes=[b"a", None, b"\xff"],
        special_ids={},
        stop_token_ids=(1,),
        vocab_size=3,
        encode=lambda text: [],
    )
    tensors = {
        "small": TensorData("uint8", (2,), b"ab"),
        "large": TensorData("uint8", (BIG,), b"c" * BIG),
    }
    item = MediaInput(content_hash="7", spans=((1, 2), (5, 1)), tensors=tensors)
    sampling = TokenSampling(
        seed=2**63 - 1, max_tokens=3, logit_bias={5: -1.5}, bad_word_ids=((1, 2), (3,))
    )
    return decode_plan(
        num_rows=3,
        of_allowed=np.array([True, False, True]),
        awaits_masks=True,
        masked=True,
        has_adapters=True,
        attach=[Attached(2, sampling, 4, ints(1, 2, 3)), Attached(0, sampling)],
        detach=[1, 299],
        moves=BlockMoves(swap_out=[(9, 4)], swap_in=[(0, 1)], copy=[(1, 2), (3, 9)]),
        encode=[EncodeItem(item, ints(3, 4, 8))],
        adapters=[
            AdapterLoad(Span(0, 2), PackedAdapter(head, memoryview(b"z" * BIG))),
            AdapterLoad(Span(2, 2), PackedAdapter(head, memoryview(b"y"))),
        ],
        automata=[
            AutomatonLoad(4, ints(1, 2, 3), vocabulary),
            AutomatonLoad(64, np.arange(BIG, dtype=np.int32), vocabulary),
        ],
        cuts=RowCuts(ints(0, 0, 2), ints(1, 2, 3), ints(4, 0, 0), np.array([True, False, True])),
    )


def vocabulary_of(plan: StepPlan) -> GuideVocabulary:
    vocabulary = plan.automata[0].vocabulary
    assert isinstance(vocabulary, GuideVocabulary)
    return vocabulary


def test_a_plan_with_all_that_plans_have_comes_out_as_it_was() -> None:
    ways = crossing()
    plan = full_plan()
    for step_id in (1, 2):  # the second time without the texts of tokens
        ways.cross(replace(plan, step_id=step_id))


def test_large_payloads_are_frames_of_their_own_that_nobody_copies() -> None:
    plan = full_plan()
    frames = PlanEncoder().encode(plan)
    assert [len(frame) for frame in frames[2:]] == [BIG, BIG, 4 * BIG]
    assert len(frames[1]) < 2000
    assert np.shares_memory(np.frombuffer(frames[-1], np.int32), plan.automata[1].words)
    decoded = PlanDecoder(FACTS).decode(frames)
    assert np.shares_memory(decoded.automata[1].words, plan.automata[1].words)


def test_the_texts_of_tokens_are_sent_once_and_anew_where_they_are_others() -> None:
    plan = full_plan()
    encoder, decoder = PlanEncoder(), PlanDecoder(FACTS)
    first, second = (encoder.encode(plan) for _ in range(2))
    assert len(first[1]) > len(second[1])
    decoder.decode(first)
    assert decoder.decode(second).automata[0].vocabulary.token_bytes == [b"a", None, b"\xff"]
    with pytest.raises(FrameError, match="no token texts"):
        PlanDecoder(FACTS).decode(second)
    others = dataclasses.replace(vocabulary_of(plan), stop_token_ids=(2,))
    load = plan.automata[0]._replace(vocabulary=others)
    decoded = decoder.decode(encoder.encode(replace(plan, automata=[load])))
    assert decoded.automata[0].vocabulary.stop_token_ids == (2,)


def test_a_repeated_step_is_header_and_diff() -> None:
    ways = crossing()
    plan = decode_plan(1, num_words=5, attach=[Attached(0, TokenSampling(seed=1, max_tokens=2))])
    ways.cross(plan)
    assert ways.num_bytes > 256 * 24
    for step_id, num_words in ((2, 0), (3, 8), (7, 0)):
        ways.cross(again(plan, step_id, num_words=num_words))
        assert ways.num_bytes == HEADER_BYTES + 8 * num_words <= 200


def test_several_groups_of_rows_repeat_their_own_steps_in_turn() -> None:
    """As with several pipeline stages; what neither end keeps is sent in full again."""
    ways = crossing()
    for num_groups, is_small in ((4, True), (MOST_KEPT, True), (MOST_KEPT + 1, False)):
        plans = [decode_plan(100 * num_groups + i, num_rows=i + 1) for i in range(num_groups)]
        for plan in plans:
            ways.cross(plan)
        for turn in range(1, 4):
            for plan in plans:
                ways.cross(again(plan, plan.step_id + turn * num_groups))
                assert (ways.num_bytes == HEADER_BYTES) == is_small


def test_a_step_that_repeats_one_unknown_there_is_sent_in_full_and_can_be_repeated() -> None:
    ways = crossing()
    unknown = decode_plan(5, repeats=1)
    ways.cross(unknown)
    assert ways.num_bytes > HEADER_BYTES
    ways.cross(again(unknown, 6))
    assert ways.num_bytes == HEADER_BYTES


def test_the_recording_is_the_plans_own_though_it_repeats_one_that_named_none() -> None:
    ways = crossing()
    plan = decode_plan(1, num_rows=3, masked=True, has_adapters=True)
    ways.cross(plan)
    whole = StepKind(True, plan.work, has_adapters=True, masked=True)
    for step_id, kind in ((2, whole), (3, StepKind(False, has_adapters=True)), (4, None)):
        named = again(plan, step_id)
        named.recording = None if kind is None else Recording(kind, 4, 4)
        named.masked = named.has_adapters = True
        ways.cross(named)
        assert ways.num_bytes == HEADER_BYTES


@pytest.mark.parametrize("num_rows", [2, -1, STATE.num_slots + 1])
def test_a_recording_without_room_for_the_rows_or_beyond_all_slots_is_refused(
    num_rows: int,
) -> None:
    plan = decode_plan(num_rows=3, recording=Recording(StepKind(True, Work(3)), num_rows, 300))
    with pytest.raises(FrameError, match="names a recording"):
        PlanDecoder(FACTS).decode(PlanEncoder().encode(plan))


def with_word(frames: Frames, place: int, value: int) -> Frames:
    words = np.frombuffer(bytearray(frames[0]), np.int32).copy()
    words[place] = value
    return [bytearray(words.tobytes()), *frames[1:]]


HEADER_WORDS = HEADER_BYTES // 4
FIRST_SIZE = 13


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        ([], "short of its header"),
        ([b""], "short of its header"),
        ([bytes(HEADER_BYTES - 4)], "short of its header"),
        ([bytes(HEADER_BYTES + 2)], "cut within a word"),
        ([bytes(HEADER_BYTES)], "version 0x0 came"),
    ],
)
def test_what_is_no_plan_is_named(frames: Frames, message: str) -> None:
    with pytest.raises(FrameError, match=message):
        PlanDecoder(FACTS).decode(frames)


def test_a_plan_short_of_words_or_frames_is_refused() -> None:
    frames = PlanEncoder().encode(full_plan())
    for wrong in (
        [frames[0][:-4], *frames[1:]],
        [bytes(frames[0]) + bytes(4), *frames[1:]],
        frames[:1],
        frames[:-1],
        [frames[0], frames[1][:-1], *frames[2:]],
        [frames[0], b"", *frames[2:]],
    ):
        with pytest.raises(FrameError):
            PlanDecoder(FACTS).decode(wrong)
    plain = PlanEncoder().encode(decode_plan())
    with pytest.raises(FrameError, match="no more"):
        PlanDecoder(FACTS).decode([*plain, b"more"])


@pytest.mark.parametrize("section", range(len(Sections._fields)))
@pytest.mark.parametrize("size", [-1, 1, 2**31 - 1, -(2**31)])
def test_sizes_that_are_not_those_of_the_words_are_refused(section: int, size: int) -> None:
    plan = decode_plan(num_words=8)
    frames = PlanEncoder().encode(plan)
    wrong = plan.sizes[section] + 1 if size == 1 else size
    with pytest.raises(FrameError):
        PlanDecoder(FACTS).decode(with_word(frames, FIRST_SIZE + section, wrong))
    encoder, decoder = PlanEncoder(), PlanDecoder(FACTS)
    decoder.decode(encoder.encode(plan))
    repeated = encoder.encode(again(plan, 2, num_words=8))
    with pytest.raises(FrameError):
        decoder.decode(with_word(repeated, FIRST_SIZE + section, wrong))


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (0, STATE.num_words, "word of the state"),
        (0, -1, "word of the state"),
        (4, 301, "row's slot"),
        (4, -5, "row's slot"),
        (8, 2, "tokens together|row's tokens"),
        (7, 1, "tokens together"),
        (10, 900, "tokens together"),
        (11, 400, "sampling row's slot"),
        (14, 3, "token with logits"),
    ],
)
def test_numbers_of_what_is_not_there_are_refused(place: int, value: int, message: str) -> None:
    """Of a plan of two words' diff and three rows."""
    frames = PlanEncoder().encode(decode_plan(num_rows=3, num_words=2))
    if place == 8:
        frames = with_word(frames, HEADER_WORDS + 9, -1)
    with pytest.raises(FrameError, match=message):
        PlanDecoder(FACTS).decode(with_word(frames, HEADER_WORDS + place, value))


def test_a_repeated_diff_is_held_to_the_state_too_and_to_a_step_that_is_kept() -> None:
    encoder = PlanEncoder()
    plan = decode_plan(1)
    first, second = encoder.encode(plan), encoder.encode(again(plan, 2, num_words=3))
    with pytest.raises(FrameError, match="repeats step 1, which is not kept"):
        PlanDecoder(FACTS).decode(second)
    decoder = PlanDecoder(FACTS)
    decoder.decode(first)
    with pytest.raises(FrameError, match="word of the state"):
        decoder.decode(with_word(second, HEADER_WORDS, STATE.num_words))
    with pytest.raises(FrameError):
        decoder.decode([*second, b"more"])
    assert_same(decoder.decode(second).buffer, again(plan, 2, num_words=3).buffer, "buffer")


@pytest.mark.parametrize(
    "changes",
    [
        {"detach": [300]},
        {"detach": [-1]},
        {"attach": [Attached(300, TokenSampling(seed=1, max_tokens=1))]},
        {"moves": BlockMoves(swap_out=[(10, 0)])},
        {"moves": BlockMoves(swap_out=[(9, 5)])},
        {"moves": BlockMoves(swap_in=[(5, 9)])},
        {"moves": BlockMoves(copy=[(0, -1)])},
        {"cuts": RowCuts(ints(3), ints(1), ints(0), np.array([True]))},
        {"cuts": RowCuts(ints(0), ints(1, 2), ints(0), np.array([True]))},
        {"adapters": [full_plan().adapters[0]._replace(span=Span(-1, 2))]},
        {"automata": [full_plan().automata[0]._replace(first=-4)]},
    ],
)
def test_slots_blocks_and_rows_that_are_not_there_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(FrameError):
        PlanDecoder(FACTS).decode(PlanEncoder().encode(replace(full_plan(), **changes)))


def test_damaged_frames_raise_nothing_but_their_error() -> None:
    """Words and bytes changed at random; what is decoded all the same stays within the state."""
    rng = random.Random(7)
    whole = PlanEncoder().encode(full_plan())
    outcomes: Counter[str] = Counter()
    for _ in range(3000):
        frames = [bytearray(frame) for frame in whole]
        for _ in range(rng.randint(1, 3)):
            frame = frames[rng.choice([0, 0, 1, rng.randrange(len(frames))])]
            if not frame:
                continue
            if rng.random() < 0.1:
                del frame[rng.randrange(len(frame)) :]
            else:
                frame[rng.randrange(len(frame))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF])
        try:
            plan = PlanDecoder(FACTS).decode(frames)
        except FrameError:
            outcomes["refused"] += 1
            continue
        outcomes["taken"] += 1
        num_words = plan.sizes.diff_indices
        assert all(0 <= word < STATE.num_words for word in plan.buffer[:num_words].tolist())
        assert all(0 <= slot <= STATE.num_slots for slot in plan.slots.tolist())
        assert plan.query_lens.sum() == plan.num_tokens
    assert min(outcomes["refused"], outcomes["taken"]) > 200


def test_walks_of_the_scheduling_machine_send_repeated_steps_in_few_bytes() -> None:
    world = World(Case("full", "recompute", "fcfs", 2, num_blocks=60), Counter())
    for seed in range(6):
        world.add([1, 2, seed], 1, TokenSampling(seed=seed, max_tokens=30))
    sizes = []
    while world.live():
        world.step()
        if world.last_plan is not None and world.last_plan.repeats:
            sizes.append(world.crossing.num_bytes)
    assert len(sizes) > 10
    assert min(sizes) == HEADER_BYTES
    assert max(sizes) <= HEADER_BYTES + 8 * 6


@pytest.mark.parametrize("executor", ["threads", "recording threads"])
def test_a_real_model_gives_the_same_tokens_by_plans_that_crossed(executor: str) -> None:
    """In batches, chunks, preempted, forked, guided."""
    host = PluginHost.discover()
    host.register(ThreadRanksPlugin())
    checks = check_executor(host, executor)
    assert len(checks) > 5
    assert [check.detail for check in checks if not check.passed] == []
