"""Lines of recurrent state: their books on the host, their bytes on the device, and mistakes."""

from __future__ import annotations

import inspect
import itertools
import logging
import random
import sys
import types
from collections import Counter

import numpy as np
import pytest
import torch
from torch import Tensor

from octavo.cache import state_lines
from octavo.cache.line_layout import LineLayout
from octavo.cache.state_lines import NUM_RESERVED, PADDING, ZEROS, StateLines
from octavo.errors import ConfigError
from octavo.execution.state_memory import StateMemory
from octavo.layers.recurrent import scan
from octavo.scheduling import placement, repeated, scheduler
from octavo.steps.loads import LineMove
from octavo_registry.cache import CacheSpec, StateTensor
from octavo_registry.step import StateStep, StepBounds
from recurrent_model import DeltaLayer
from scheduling_cases import Case
from scheduling_walks import add, fail, step, walk
from scheduling_world import World

CPU = torch.device("cpu")


def test_the_oldest_checkpoint_goes_for_a_sequence() -> None:
    lines, moves = StateLines(NUM_RESERVED + 3, 4, checkpoint_tokens=4), []
    for slot, digest in ((0, b"a"), (1, b"b")):
        lines.hold(slot, lines.take(ZEROS, moves), 0)
        lines.follow(np.array([slot]), np.array([0]), np.array([4]), np.array([True]), moves)
        lines.register(slot, 4, [digest], 4)
        lines.release(slot)
    assert [lines.find(digest) is not None for digest in (b"a", b"b", b"c")] == [True, True, False]
    lines.take(lines.find(b"a"), moves)  # which makes it the newer of the two
    lines.take(ZEROS, moves)
    assert lines.find(b"b") is None
    assert lines.find(b"a") is not None
    assert lines.num_available == 1


def test_the_last_line_of_all_may_be_the_checkpoint_itself() -> None:
    lines, moves = StateLines(NUM_RESERVED + 2, 4, checkpoint_tokens=4), []
    lines.hold(0, lines.take(ZEROS, moves), 0)
    lines.follow(np.array([0]), np.array([0]), np.array([4]), np.array([True]), moves)
    lines.register(0, 4, [b"a"], 4)
    kept, moves = lines.find(b"a"), []
    assert lines.take(kept, moves) == kept
    assert moves == []
    assert lines.find(b"a") is None


def test_a_store_that_has_no_states_is_refused() -> None:
    with pytest.raises(ConfigError, match="a KV store has no states"):
        World(Case("state", "recompute", "fcfs", 2, has_store=True), Counter())


def test_moves_are_done_as_if_one_after_the_other() -> None:
    spec = CacheSpec.state(
        tensors=(StateTensor((3,), "float32"),), log=(StateTensor((2,), "bfloat16"),)
    )
    rng = random.Random(0)
    for _ in range(50):
        memory = StateMemory(LineLayout(specs=(("a", spec),), num_logged=2), 6, 3, CPU)
        memory.views["a"].tensors[0][:] = torch.arange(6.0)[:, None]
        memory.views["a"].log[0][:] = -torch.arange(6.0)[:, None, None]
        lines, swap = list(range(6)), [0] * 3
        moves = []
        for _ in range(12):
            kind = rng.choice(["copy", "copy", "swap_out", "swap_in"])
            source = rng.randrange(3 if kind == "swap_in" else 6)
            target = rng.randrange(3 if kind == "swap_out" else 6)
            moves.append(LineMove(kind, source, target))
            value = (swap if kind == "swap_in" else lines)[source]
            (swap if kind == "swap_out" else lines)[target] = value
        memory.move(moves)
        assert memory.views["a"].tensors[0].tolist() == [[value] * 3 for value in lines]
        assert memory.views["a"].log[0][:, 1, 0].tolist() == [-value for value in lines]


@pytest.mark.gpu
def test_copies_of_lines_take_no_memory_and_no_wait() -> None:
    """Many sequences may enter in one step, each with a line of its own of many megabytes."""
    spec = CacheSpec.state(tensors=(StateTensor((2**20,), "float32"),))
    memory = StateMemory(
        LineLayout(specs=(("a", spec),), num_logged=1), 24, 3, torch.device("cuda")
    )
    memory.move([LineMove("copy", 0, 1)])  # which loads the kernel
    values_N = memory.views["a"].tensors[0]
    values_N[:] = torch.arange(24.0, device="cuda")[:, None]
    moves = [LineMove("copy", line, line + 12) for line in range(12)]
    moves += [LineMove("swap_out", 20, 1), LineMove("copy", 1, 20), LineMove("swap_in", 1, 0)]
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    torch.cuda.set_sync_debug_mode("error")
    try:
        memory.move(moves)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.max_memory_allocated() - before < 2**20
    wanted = [8, *range(1, 12), *range(8), 1, *range(9, 12)]
    assert values_N[:, 0].tolist() == values_N[:, -1].tolist() == wanted


class Rows:
    """Rows of one layer, which run step by step with some tokens that may not count."""

    def __init__(self, num_rows: int, num_logged: int) -> None:
        self.layer = DeltaLayer("a", torch.Generator().manual_seed(1))
        layout = LineLayout(specs=(("a", self.layer.cache_spec),), num_logged=num_logged)
        self.memory = StateMemory(layout, NUM_RESERVED + num_rows, 0, CPU)
        self.state = {
            "state_line": torch.arange(num_rows, dtype=torch.int32) + NUM_RESERVED,
            "computed": torch.zeros(num_rows, dtype=torch.int32),
        }

    def begin(self, slots: list[int], lens: list[int]) -> StateStep:
        starts = torch.tensor([0, *np.cumsum(lens)], dtype=torch.int32)
        rows_T = torch.repeat_interleave(torch.arange(len(slots)), torch.tensor(lens)).int()
        bounds = StepBounds(
            query_lens_R=np.array(lens, np.int32), context_lens_R=np.zeros(len(lens), np.int32)
        )
        slots_R = torch.tensor(slots, dtype=torch.int32)
        return self.memory.begin(self.state, slots_R, rows_T, starts, bounds)

    def run(self, slots: list[int], pieces: list[Tensor]) -> list[Tensor]:
        """What the layer gives for each row's tokens."""
        step, x_TD = self.begin(slots, [len(piece) for piece in pieces]), torch.cat(pieces)
        entries = x_TD @ self.layer.inputs_DC, x_TD @ self.layer.gates_DH
        out = scan(self.memory.views["a"], step, entries, self.layer.advance) @ self.layer.out_ED
        return list(out.split([len(piece) for piece in pieces]))


@pytest.mark.parametrize("num_logged", [1, 2, 5])
def test_tokens_that_did_not_count_leave_no_trace(num_logged: int) -> None:
    torch.manual_seed(0)
    rng = random.Random(num_logged)
    rows, inputs_RTD = Rows(3, num_logged), torch.randn(3, 60, 32)
    expected_RTD = [rows.layer.plain(x_TD) for x_TD in inputs_RTD]
    computed = [0, 0, 0]
    while min(computed) < 40:
        slots = rng.sample(range(3), rng.randint(1, 3))
        slots = [slot for slot in slots if computed[slot] < 48] or [computed.index(min(computed))]
        pieces, counts = [], []
        for slot in slots:
            sure = rng.choice([1, 1, 2, 9])
            num_drafts = rng.randint(0, num_logged - 1)
            x_TD = inputs_RTD[slot, computed[slot] : computed[slot] + sure + num_drafts].clone()
            right = rng.randint(0, num_drafts)
            x_TD[sure + right :] = torch.randn(num_drafts - right, 32)
            pieces.append(x_TD)
            counts.append(sure + right)
        for slot, out_TD, count in zip(slots, rows.run(slots, pieces), counts, strict=True):
            wanted = expected_RTD[slot][computed[slot] : computed[slot] + count]
            assert torch.allclose(out_TD[:count], wanted, atol=1e-5)
            computed[slot] += count
            rows.state["computed"][slot] = computed[slot]


def test_padding_rows_may_share_a_line() -> None:
    rows = Rows(1, 1)
    rows.state = {
        "state_line": torch.tensor([NUM_RESERVED, PADDING], dtype=torch.int32),
        "computed": torch.zeros(2, dtype=torch.int32),
    }
    x_TD = torch.randn(4, 32)
    for place in range(4):
        rows.state["computed"][0] = place
        piece = x_TD[place : place + 1]
        out, *_ = rows.run([0, 1, 1], [piece, piece, piece])
    assert torch.allclose(out, rows.layer.plain(x_TD)[3:], atol=1e-5)


MUTANTS = {
    "gives two slots one line": (
        state_lines,
        "line = int(self.pool.allocate(1)[0])\n        if",
        "line = 2\n        if",
    ),
    "takes a line without a copy": (
        state_lines,
        'moves.append(LineMove("copy", source, line))',
        "pass",
    ),
    "keeps a checkpoint under the wrong digest": (
        state_lines,
        "end // block_tokens - 1",
        "end // 8 - 1",
    ),
    "lets tokens be found that are not confirmed": (
        state_lines,
        "if end <= confirmed:",
        "if end // block_tokens <= len(digests):",
    ),
    "swaps a state that is behind more tokens": (
        state_lines,
        " or self.position_S[slot] > num_tokens",
        "",
    ),
    "gives a line back twice": (state_lines, "            kept.family = None\n", ""),
    "gives a line back too early": (
        state_lines,
        "moves), num_forks\n",
        "moves), num_forks\n            self._release([kept.family])\n",
    ),
    "uses checkpoints behind a step that raised": (
        state_lines,
        "        self.pool.forget_all()",
        "        pass",
    ),
    "takes up the wrong line of the host": (
        state_lines,
        'LineMove("swap_in", swap_line, line)',
        'LineMove("swap_in", 0, line)',
    ),
    "takes a prefix without a checkpoint": (placement, "max_blocks, self.lines", "max_blocks"),
    "forks without a copy": (
        placement,
        "self._enter(sequence, start, line, confirmed=False)",
        "self._enter(sequence, start, confirmed=False)",
    ),
    "begins a prefix anew": (
        placement,
        "source = self.lines.find(sequence.digests[length - 1]) or ZEROS",
        "pass",
    ),
    "repeats a step before lines are copied": (
        repeated,
        "if placement.next_plan.moves.lines or not",
        "if not",
    ),
    "does not follow repeated steps": (
        repeated,
        "placement.lines.plan(slots, record.ends, ends)",
        "pass",
    ),
}
HOLDERS = {state_lines: "StateLines", placement: "Placement", repeated: "RepeatedSteps"}
TRIED = (
    Case("state", "recompute", "fcfs", 2),
    Case("state", "swap", "priority", 2, num_logged=4),
    Case("states", "swap", "fcfs", 2),
)


def walk_all() -> None:
    for number, case in itertools.product(range(40), TRIED):
        walk(case, number, Counter())
    for number in range(40):
        walk(TRIED[-1], number, Counter(), lambda case, rng: [add, step, fail])


@pytest.mark.parametrize("name", MUTANTS)
def test_mistakes_are_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, old, new = MUTANTS[name]
    source = inspect.getsource(module)
    assert old in source
    made = types.ModuleType(module.__name__)
    monkeypatch.setitem(sys.modules, made.__name__, made)
    exec(compile(source.replace(old, new, 1), module.__file__, "exec"), made.__dict__)
    monkeypatch.setattr(scheduler, HOLDERS[module], getattr(made, HOLDERS[module]))
    logging.getLogger("octavo").setLevel(logging.ERROR)
    with pytest.raises((AssertionError, KeyError, IndexError, ValueError)):
        walk_all()
    logging.getLogger("octavo").setLevel(logging.NOTSET)
