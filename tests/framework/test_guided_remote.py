"""Guides in children: what ends a child ends one sequence, and all others never notice."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import every_guide
from every_guide import FAULTS, NUM_TOKENS
from octavo import LLM, GuidedParams, SamplingParams
from octavo.errors import RequestFailedError, UnsupportedConstraint
from octavo.guided import remote, sequence
from octavo.guided.remote import RemoteBackend
from octavo.guided.sequence import CompiledGuide, GuidedSequence, MaskFiller
from octavo.testing.guided_samples import vocabulary
from octavo_registry import PluginHost
from octavo_registry.guided import Constraint, GuideVocabulary

PROMPTS = [{"prompt_token_ids": list(range(300, 310 + 9 * each))} for each in range(10)]


def far(manner: str = "quick", **more) -> SamplingParams:
    guided = GuidedParams(grammar=manner, backend=more.pop("backend", "far"))
    return SamplingParams(**{"guided": guided, "temperature": 1.0, "max_tokens": 64, **more})


def free(seed: int) -> SamplingParams:
    return SamplingParams(temperature=1.0, seed=seed, max_tokens=30, ignore_eos=True)


def start(**options) -> LLM:
    wanted = {"dtype": "float32", "num_threads": 1, "max_num_seqs": 12, **options}
    return LLM("octavo/tiny", plugins=["every_guide"], **wanted)


def tokens_of(outputs) -> list[list[int]]:
    assert [output.error for output in outputs] == [None] * len(outputs)
    return [each.token_ids for output in outputs for each in output.outputs]


def run(llm: LLM, manner: str = "quick", **more) -> list[list[int]]:
    """Guided and free requests in turn."""
    params = [far(manner, seed=i, **more) if i % 2 else free(i) for i in range(6)]
    return tokens_of(llm.generate(PROMPTS[:6], params, use_tqdm=False))


def children() -> set[int]:
    """Processes of this one that fill masks and have not ended."""
    found = set()
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            command = Path(f"/proc/{pid}/cmdline").read_text()
        except OSError:
            continue
        if int(stat[1]) == os.getpid() and stat[0] != "Z" and remote.CHILD in command:
            found.add(pid)
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition, seconds: float = 30.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.fixture(scope="module")
def llm():
    with start() as llm:
        yield llm


@pytest.fixture(scope="module")
def expected(llm) -> list[list[int]]:
    return run(llm, backend="near")


@pytest.mark.parametrize("manner", ["quick", "slow and forced"])
def test_tokens_are_those_of_masks_that_the_engine_fills(llm, expected, manner) -> None:
    assert run(llm, manner) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"async_depth": 3},
        {"max_num_batched_tokens": 16},
        {"num_blocks": 11, "block_size": 16, "max_model_len": 160, "preemption_mode": "swap"},
    ],
    ids=str,
)
def test_tokens_do_not_depend_on_depth_chunks_or_preemption(expected, options) -> None:
    with start(**options) as llm:
        assert run(llm, "slow") == expected
        assert ("num_blocks" in options) == (llm._front.client.call("stats")["num_preemptions"] > 0)


def test_continuations_have_a_state_each_in_two_children(llm) -> None:
    (output,) = llm.generate(PROMPTS[2], far(n=6, seed=3, temperature=3.0), use_tqdm=False)
    texts = [each.token_ids for each in output.outputs]
    assert len({tuple(tokens) for tokens in texts}) == 6
    assert all(len(t) == NUM_TOKENS and not (np.cumsum(t) % 7).any() for t in texts)
    assert {each.finish_reason for each in output.outputs} == {"stop"}
    assert len(children()) == min(remote.MOST_CHILDREN, os.cpu_count())


LATE = {"sleeps": "it took too long", "burns": "it took too long"}
DEADLY = dict.fromkeys(["dies", "bad and dies"], "its process has ended")
GREEDY = dict.fromkeys(["exits", "eats"], "its process has ended")
RAISING = {
    "breaks": "RuntimeError: no more",
    "bad start": "RuntimeError: not now",
    "bad": "this cannot be compiled",
    "odd": "invalid literal",
}


@pytest.mark.parametrize(
    "culprits",
    [
        RAISING,
        pytest.param(DEADLY, marks=pytest.mark.slow),
        pytest.param(GREEDY, marks=pytest.mark.slow),
        pytest.param(LATE, marks=pytest.mark.slow),
    ],
    ids=["raising", "deadly", "greedy", "late"],
)
def test_what_ends_a_child_fails_one_request_and_changes_no_other(llm, expected, culprits) -> None:
    params = [free(0), *(far(seed=i) for i in range(1, 6))]
    wrong = dict(zip((2, 4, 6, 7), culprits, strict=False))  # some between the others
    params += [far()] * (len(culprits) - 2)
    for place, manner in wrong.items():
        params[place] = far(manner)
    outputs = llm.generate(PROMPTS[: len(params)], params, use_tqdm=False)
    places = [0, 1, 3, 5]
    assert tokens_of([outputs[i] for i in places]) == [expected[i] for i in places]
    for place, manner in wrong.items():
        assert "guided backend 'far'" in outputs[place].error
        assert culprits[manner] in outputs[place].error
        assert len(outputs[place].outputs[0].token_ids) == (5 if manner in FAULTS else 0)
    assert run(llm) == expected
    assert llm._front.client.call("stats")["num_live_blocks"] == 0
    assert len(children()) <= remote.MOST_CHILDREN


def test_an_engine_that_is_closed_leaves_no_child() -> None:
    before = children()
    with start() as llm:
        assert len(tokens_of(llm.generate(PROMPTS[0], far(), use_tqdm=False))) == 1
        assert children() - before
    wait_until(lambda: children() == before)


@pytest.fixture
def backend():
    host = PluginHost.discover(plugins=["every_guide"])
    letters: list[bytes | None] = [bytes([each % 256]) for each in range(2048)]
    words = GuideVocabulary(
        token_bytes=letters,
        special_ids={},
        stop_token_ids=(0,),
        vocab_size=2048,
        encode=lambda text: [],
    )
    backend = RemoteBackend("far", host.manifest(), words)
    yield backend
    backend.close()


def grammar(manner: str) -> Constraint:
    return Constraint(kind="grammar", value=manner)


def mask_of(state) -> list[int]:
    row = np.zeros(64, np.int32)
    state.fill_bitmask(row)
    return row.tolist()


def draw(state) -> int:
    bits = np.unpackbits(np.array(mask_of(state), np.int32).view(np.uint8), bitorder="little")
    return int(np.flatnonzero(bits)[-1])


def test_states_are_made_anew_in_a_new_child_from_their_tokens(backend) -> None:
    state = backend.compile(grammar("quick")).start()
    masks = []
    for _ in range(6):
        masks.append(mask_of(state))
        assert state.accept(draw(state))
    child = backend._seats[0]._child.pid
    os.kill(child, signal.SIGKILL)
    wait_until(lambda: not alive(child))
    masks.append(mask_of(state))
    assert backend._seats[0]._child.pid != child
    for num in (1, 3, 2):
        state.rollback(num)
        del masks[len(masks) - num :]
        assert mask_of(state) == masks[-1]
        assert mask_of(state.fork()) == masks[-1]
    assert not state.accept(1)
    assert mask_of(state) == masks[-1]


def test_who_is_at_work_when_another_ends_the_child_is_served_by_the_next(backend) -> None:
    state = backend.compile(grammar("quick")).start()
    token = draw(state)
    assert state.accept(token)
    child = backend._seats[0]._child.pid
    os.kill(child, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as threads:
        waits = threads.submit(mask_of, state)
        wait_until(backend._seats[0]._lock.locked)
        os.kill(child, signal.SIGKILL)
        assert waits.result() == mask_of(state.fork())


def test_a_child_forgets_states_and_guides_that_nobody_uses(backend, monkeypatch) -> None:
    monkeypatch.setattr(remote, "MOST_IDLE_GUIDES", 4)

    def census() -> int:
        return backend.compile(grammar("census")).start().forced()[0]

    least = census()
    states = [backend.compile(grammar("quick")).start() for _ in range(3)]
    assert [len(mask_of(state)) for state in states] == [64] * 3
    assert census() > least + 3
    del states
    gc.collect()
    for _ in range(remote.MOST_IDLE_GUIDES):
        backend.compile(grammar("quick"))
    assert census() <= least + 2 * remote.MOST_IDLE_GUIDES


def test_a_token_is_accepted_without_a_word_to_the_child(backend) -> None:
    state = backend.compile(grammar("quick")).start()
    token = draw(state)
    child = backend._seats[0]._child.pid
    os.kill(child, signal.SIGSTOP)
    began = time.monotonic()
    assert not state.accept(token + 1)
    assert state.accept(token)
    assert not state.is_finished()
    assert time.monotonic() - began < remote.WALL_SECONDS - 1  # a word would wait that long
    os.kill(child, signal.SIGCONT)
    assert mask_of(state)


def test_rows_that_wait_for_no_child_are_not_delayed(backend, monkeypatch) -> None:
    monkeypatch.setattr(sequence, "MASK_SECONDS", 10.0)
    stuck, alone = (
        GuidedSequence(CompiledGuide(backend.compile(grammar("quick"))), 2048) for _ in range(2)
    )
    near = GuidedSequence(CompiledGuide(every_guide.Every(None, "quick")), 2048)
    child = backend._seats[0]._child.pid
    filler = MaskFiller()
    os.kill(child, signal.SIGSTOP)
    began = time.monotonic()
    for _ in range(2):
        filler.fill([stuck, near], num_rows=2)
        assert near.is_current
        assert stuck.is_filling
    filler.fill([stuck], num_rows=2)
    assert time.monotonic() - began < 5
    threading.Timer(0.3, os.kill, [child, signal.SIGCONT]).start()
    filler.fill([stuck, alone], num_rows=2)
    assert stuck.is_current
    assert alone.is_current
    assert stuck.mask_W.tolist() == near.mask_W.tolist()
    filler.close()


@pytest.mark.slow
def test_one_that_is_late_is_ended_and_named(backend, monkeypatch) -> None:
    guide = backend.compile(grammar("quick"))
    others = [guide.start() for _ in range(2)]
    before = [mask_of(each) for each in others]
    state = backend.compile(grammar("sleeps")).start()
    for _ in range(5):
        assert state.accept(draw(state))
    late = pytest.raises(RequestFailedError, match="guided backend 'far' gave no mask: it took too")
    with monkeypatch.context() as patch, late:
        patch.setattr(remote, "WALL_SECONDS", 2.0)
        state.forced()
    assert [mask_of(each.fork()) for each in others] == before


def test_a_guide_that_ends_the_child_while_it_compiles_is_refused(backend) -> None:
    with pytest.raises(UnsupportedConstraint, match="could not be compiled: its process has ended"):
        backend.compile(grammar("bad and dies"))


def test_a_backend_that_cannot_be_made_is_no_fault_of_the_constraint() -> None:
    before = children()
    nowhere = RemoteBackend("nowhere", PluginHost.discover().manifest(), vocabulary())
    with pytest.raises(RequestFailedError, match="process of guided backend 'nowhere' has failed"):
        nowhere.compile(grammar("quick"))
    assert children() == before


PARENT = """
import sys, threading, time
from octavo.guided.remote import RemoteBackend
from octavo.testing.guided_samples import vocabulary
from octavo_registry import PluginHost
from octavo_registry.guided import Constraint

host = PluginHost.discover(plugins=["every_guide"])
backend = RemoteBackend("far", host.manifest(), vocabulary())
backend.compile(Constraint(kind="grammar", value="quick"))
if sys.argv[1] == "busy":
    wrong = Constraint(kind="grammar", value="bad and sleeps")
    threading.Thread(target=backend.compile, args=[wrong], daemon=True).start()
    time.sleep(0.5)
print(backend._seats[0]._child.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("how", "at"),
    [
        (signal.SIGKILL, "idle"),
        (None, "idle"),
        pytest.param(signal.SIGKILL, "busy", marks=pytest.mark.slow),
    ],
)
def test_children_end_with_their_parent(how, at) -> None:
    folder = str(Path(every_guide.__file__).parent)
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, at],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": folder},
    )
    with parent:
        child = int(parent.stdout.readline())
        assert alive(child)
        if how is not None:
            parent.send_signal(how)
        parent.stdin.close()
        parent.wait()
        wait_until(lambda: not alive(child))
