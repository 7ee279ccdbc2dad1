"""Words on the device: whose automaton has them, who gives them up, and what is copied."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from automaton_guides import short
from octavo.execution.memory_budget import budget_of
from octavo.frontend.options import read_options
from octavo.guided.byte_automaton import ByteAutomatonGuide
from octavo.guided.sequence import CompiledGuide
from octavo.messages import EngineRequest, TokenSampling
from octavo.sampling.automata import DeviceAutomata, automaton_bytes
from octavo.sampling.sparse import table_bytes
from octavo.scheduling.family import AutomatonPool, automaton_pool, family_of, guide_family
from octavo.scheduling.sequence import Sequence
from octavo.steps.device_state import DeviceState
from octavo.steps.layout import StateDiff, StateLayout
from octavo.steps.loads import AutomatonLoad, Span
from octavo_registry import PluginHost
from octavo_registry.guided import GuideVocabulary

WORDS = GuideVocabulary(
    token_bytes=[b"a", b"bc", b"!", None],
    special_ids={},
    stop_token_ids=(3,),
    vocab_size=40,
    encode=list,
)
SIZE = 68 + 3 * 12


def loading(first: int, guide: ByteAutomatonGuide) -> AutomatonLoad:
    return AutomatonLoad(first, guide.words, guide.vocabulary)


def guide(num_letters: int) -> ByteAutomatonGuide:
    """Of 68 words and 3 a letter, and 3 more."""
    return ByteAutomatonGuide(short(num_letters), WORDS)


A, B, C = guide(11), guide(12), guide(10)


def guided(guide: ByteAutomatonGuide, pool: AutomatonPool) -> tuple[Sequence, Exception | None]:
    """A sequence that is to be led by it, and why that cannot be."""
    request = EngineRequest(
        request_id="r",
        sequences=(1,),
        prompt_token_ids=[1],
        sampling=TokenSampling(seed=0, max_tokens=1),
    )
    family = family_of(request, 0, "model", ())
    return family[0], guide_family(family, CompiledGuide(guide), WORDS.vocab_size, pool)


def provide(pool: AutomatonPool, guide: ByteAutomatonGuide) -> Span | None:
    (need,) = guided(guide, pool)[0].needs
    return pool.provide(need.resident)


def first(pool: AutomatonPool, guide: ByteAutomatonGuide) -> int | None:
    """The word where it begins."""
    return None if (span := provide(pool, guide)) is None else span.first


def loads(pool: AutomatonPool) -> list[tuple[int, ByteAutomatonGuide]]:
    return [(span.first, guide) for span, guide in pool.take_loads()]


def test_automata_lie_side_by_side_behind_the_line_of_nobody_and_are_copied_once() -> None:
    pool = automaton_pool(2**20)
    assert len(A.words) == SIZE
    assert [first(pool, each) for each in (A, B, C, A)] == [4, 4 + 104, 4 + 104 + 108, 4]
    assert loads(pool) == [(4, A), (108, B), (216, C)]
    assert loads(pool) == []


def test_equal_automata_are_one() -> None:
    pool = automaton_pool(2**20)
    assert first(pool, A) == first(pool, guide(11))
    pool.pin(guide(11).digest)
    assert pool.is_pinned(A.digest)
    assert len(loads(pool)) == 1
    assert (len(pool), pool.num_loads) == (1, 1)


def test_the_idle_one_that_was_used_longest_ago_gives_way_and_a_running_one_never() -> None:
    pool = automaton_pool(4 + 3 * 108)
    D = guide(9)
    for each in (A, B, C):
        provide(pool, each)
    pool.pin(A.digest)
    provide(pool, B)  # so that C is older
    assert first(pool, D) == 216
    assert first(pool, C) == 108
    for each in (C, D):
        pool.pin(each.digest)
    assert first(pool, B) is None
    pool.unpin(C.digest)
    assert first(pool, B) == 108


def test_what_is_evicted_before_a_step_is_not_copied_in_it() -> None:
    pool = automaton_pool(4 + 108)
    provide(pool, A)
    provide(pool, B)
    assert loads(pool) == [(4, B)]


def test_after_a_step_that_raised_what_is_needed_is_copied_again() -> None:
    pool = automaton_pool(2**20)
    provide(pool, A)
    loads(pool)
    provide(pool, B)
    pool.after_fault(reload=False)
    assert loads(pool) == []
    assert [first(pool, each) for each in (C, A)] == [4, 108]
    assert loads(pool) == [(4, C), (108, A)]


def test_an_automaton_that_never_fits_is_refused() -> None:
    pool = automaton_pool(4 + SIZE)
    assert guided(A, pool)[1] is None
    assert f"{SIZE + 3} words; the engine has room for {SIZE}" in str(guided(B, pool)[1])


def test_rows_are_masked_and_walked_by_their_own_automata() -> None:
    layout = StateLayout(num_slots=4, max_model_len=8, max_blocks=1, num_groups=1)
    state = DeviceState(layout, torch.device("cpu"))
    diff = StateDiff(layout)
    at, zero = np.array([0, 2]), np.zeros(2, np.int32)
    diff.put_cells("automaton", at, zero, np.array([4, 108], np.int32))
    diff.put_cells("automaton_state", at, zero, np.array([10, 11], np.int32))
    indices, values = (torch.from_numpy(each) for each in diff.joined())
    state.apply(indices, values)
    automata = DeviceAutomata(state, WORDS.vocab_size)
    for load in (loading(4, A), loading(108, B)):
        automata.load(load)
    slots_R = torch.tensor([2, 1, 0, 4], dtype=torch.int32)
    lines_R, masks_RW = automata.masks(slots_R)
    # One letter is left of the first one's text, two of the third one's.
    assert lines_R.tolist() == [0, -1, 2, -1]
    assert masks_RW[[0, 2]].tolist() == [[0b0001, 0], [0b0001, 0]]
    automata.walk(slots_R, torch.tensor([0, 0, 0, 0], dtype=torch.int32))
    assert state.automata.state_S.tolist() == [11, 0, 12, 0, 0]
    automata.masks(slots_R)
    assert masks_RW[[0, 2]].tolist() == [[0b1000, 0], [0b1000, 0]]


def test_a_row_without_any_automaton_loaded_is_an_error() -> None:
    layout = StateLayout(num_slots=3, max_model_len=8, max_blocks=1, num_groups=1)
    automata = DeviceAutomata(DeviceState(layout, torch.device("cpu")), 40)
    with pytest.raises(RuntimeError, match="none was loaded"):
        automata.masks(torch.zeros(1, dtype=torch.int32))


def test_what_the_first_automaton_brings_is_in_the_plan() -> None:
    layout = StateLayout(num_slots=3, max_model_len=8, max_blocks=1, num_groups=1)
    automata = DeviceAutomata(DeviceState(layout, torch.device("cpu")), 100_000)
    vocabulary = replace(WORDS, token_bytes=[b"usual"] * 100_000, vocab_size=100_000)
    automata.load(loading(4, ByteAutomatonGuide(short(1), vocabulary)))
    made = automata._memory
    tensors = [made.pool_W, made.masks_RW, made.mask_rows_R]
    tensors += [getattr(made.tokens, each.name) for each in fields(made.tokens)]
    taken = sum(each.nbytes for each in tensors)
    assert 0.9 * automaton_bytes(3, 100_000) < taken <= automaton_bytes(3, 100_000)


def test_an_engine_without_a_tokenizer_has_no_room_for_automata_in_its_plan() -> None:
    def workspace(**options) -> int:
        flat = {"model": "octavo/tiny", "max_num_seqs": 8, **options}
        budget = budget_of(read_options(flat, caller="test").config, PluginHost.discover(), 140)
        return budget.workspace_bytes

    room = workspace() - workspace(skip_tokenizer_init=True)
    assert room == automaton_bytes(8, 2048)


def test_tables_of_what_requests_name_are_in_the_plan() -> None:
    def workspace(slots: int) -> int:
        flat = {"model": "octavo/tiny", "max_num_seqs": slots, "max_num_batched_tokens": 4096}
        budget = budget_of(read_options(flat, caller="test").config, PluginHost.discover(), 140)
        return budget.workspace_bytes

    more = workspace(1024) - workspace(512)
    assert more >= table_bytes(1024, 2048) - table_bytes(512, 2048) == 512 * (8 + 64.25) * 1024


def test_block_tables_are_in_the_plan() -> None:
    """With 1,024 rows of 128k tokens they are 32 MiB for each cache group."""

    def workspace(block_size: int) -> int:
        flat = {"model": "octavo/tiny", "max_num_seqs": 8, "block_size": block_size}
        budget = budget_of(read_options(flat, caller="test").config, PluginHost.discover(), 140)
        assert budget.max_model_len == 1024
        return budget.workspace_bytes

    assert workspace(16) - workspace(32) == 4 * (8 + 1) * (1024 // 16 - 1024 // 32)
