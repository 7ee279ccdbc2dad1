"""The thread between an engine and event loops, with an engine that has no model."""

from __future__ import annotations

import asyncio
import os
import random
import runpy
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from octavo.config import EngineConfig, ModelConfig
from octavo.detokenizing.processor import OutputProcessor
from octavo.engine.client import InProcessClient
from octavo.engine.process_client import ProcessClient
from octavo.errors import EngineDeadError, OctavoError, ParameterError
from octavo.frontend.streaming import AT_ONCE, Mailbox, OutputStream, merge_delta
from octavo.frontend.thread import EngineThread
from octavo.inputs import PreparedRequest
from octavo.messages import (
    EngineRequest,
    PromptReport,
    SequenceEnd,
    SequenceLogprobs,
    StepOutputs,
    TokenSampling,
    join_steps,
)
from octavo.outputs import CompletionOutput, RequestMetrics, RequestOutput
from octavo.params import OutputKind, SamplingParams
from octavo_registry.manifest import Manifest

STUB = Path(__file__).with_name("stub_engine.py")
FAIL_ENGINE = 9001
CONFIG = EngineConfig(model=ModelConfig(model="ok"))

StartThread = Callable[[bool], tuple[EngineThread, int]]


@pytest.fixture
def start() -> Iterator[StartThread]:
    with ExitStack() as threads:

        def start(in_process: bool) -> tuple[EngineThread, int]:
            client: InProcessClient | ProcessClient
            if in_process:
                client = InProcessClient(runpy.run_path(str(STUB))["StubCore"](CONFIG, None))
            else:
                manifest = Manifest(api_version="1.0", plugins=())
                client = ProcessClient(CONFIG, manifest, command=(sys.executable, str(STUB)))
            thread = EngineThread(client, OutputProcessor(None))
            threads.callback(thread.close)
            return thread, 0 if in_process else client.pid

        yield start


def prepared(
    sequence: int, *, last: int = 10, max_tokens: int = 3, kind: OutputKind = "cumulative"
) -> PreparedRequest:
    params = SamplingParams(max_tokens=max_tokens, detokenize=False, output_kind=kind)
    request = EngineRequest(
        request_id=f"r{sequence}",
        sequences=(sequence,),
        prompt_token_ids=[1, last],
        sampling=TokenSampling(seed=0, max_tokens=max_tokens),
    )
    return PreparedRequest(request=request, params=params, prompt=None)


def submit(thread: EngineThread, request: PreparedRequest, mailbox: Mailbox) -> OutputStream:
    stream = OutputStream(mailbox, delta=request.params.output_kind == "delta")
    thread.submit(request, time.monotonic(), stream)
    return stream


async def read_all(stream: OutputStream) -> list[RequestOutput]:
    outputs = [await asyncio.wait_for(stream.next(), 60)]
    while not outputs[-1].finished:
        outputs.append(await asyncio.wait_for(stream.next(), 60))
    return outputs


@pytest.mark.parametrize("in_process", [True, False])
async def test_many_requests_at_a_time_each_get_their_own_tokens(
    start: StartThread, in_process: bool
) -> None:
    thread, _ = start(in_process)
    mailbox = Mailbox(asyncio.get_running_loop())
    streams = [
        submit(thread, prepared(i, last=100 * i, max_tokens=1 + i % 7), mailbox) for i in range(50)
    ]
    for i, outputs in enumerate(await asyncio.gather(*map(read_all, streams))):
        expected = list(range(100 * i + 1, 100 * i + 2 + i % 7))
        assert outputs[-1].outputs[0].token_ids == expected
        assert outputs[-1].outputs[0].finish_reason == "length"


async def test_deltas_add_up_for_a_reader_that_is_slow(start: StartThread) -> None:
    thread, _ = start(True)
    mailbox = Mailbox(asyncio.get_running_loop())
    stream = submit(thread, prepared(1, max_tokens=200, kind="delta"), mailbox)
    while (await asyncio.wrap_future(thread.call("stats")))["live"]:
        pass
    outputs = await read_all(stream)
    assert [t for o in outputs for t in o.outputs[0].token_ids] == list(range(11, 211))
    assert len(outputs) < 10, "what waited was merged"


async def test_a_loop_that_does_not_run_is_woken_once_however_many_outputs_come(
    start: StartThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread, _ = start(True)
    loop = asyncio.get_running_loop()
    wakes: list[object] = []
    call_soon = loop.call_soon_threadsafe
    monkeypatch.setattr(
        loop, "call_soon_threadsafe", lambda *args: (wakes.append(args), call_soon(*args))[1]
    )
    mailbox = Mailbox(loop)
    streams = [submit(thread, prepared(i, max_tokens=20), mailbox) for i in range(20)]
    while thread.call("stats").result(60)["live"]:
        pass  # the loop stands still while 400 tokens come
    assert len(wakes) == 1
    for outputs in await asyncio.gather(*map(read_all, streams)):
        assert len(outputs) == 1
        assert len(outputs[0].outputs[0].token_ids) == 20


@pytest.mark.parametrize("in_process", [True, False])
async def test_a_released_request_is_freed_in_the_engine_and_its_id_at_once(
    start: StartThread, in_process: bool
) -> None:
    thread, _ = start(in_process)
    mailbox = Mailbox(asyncio.get_running_loop())
    stream = submit(thread, prepared(1, max_tokens=10**6), mailbox)
    await stream.next()
    with pytest.raises(ParameterError, match="request_id='r1' is in use"):
        submit(thread, prepared(1), mailbox)
    thread.release("r1", stream)
    again = submit(thread, prepared(2), mailbox)
    reused = prepared(1, last=50)
    await read_all(submit(thread, reused, mailbox))
    await read_all(again)
    assert (await asyncio.wrap_future(thread.call("stats")))["live"] == 0


async def test_a_late_release_leaves_the_request_that_has_the_id_now(start: StartThread) -> None:
    thread, _ = start(True)
    mailbox = Mailbox(asyncio.get_running_loop())
    first = submit(thread, prepared(1), mailbox)
    await read_all(first)
    second = submit(thread, prepared(1, max_tokens=40), mailbox)
    thread.release("r1", first)
    assert (await read_all(second))[-1].outputs[0].finish_reason == "length"


async def test_an_abort_ends_the_stream_with_what_came(start: StartThread) -> None:
    thread, _ = start(False)
    stream = submit(thread, prepared(1, max_tokens=10**6), Mailbox(asyncio.get_running_loop()))
    first = await stream.next()
    thread.abort("r1")
    thread.abort("unknown")
    last = (await read_all(stream))[-1]
    assert last.outputs[0].finish_reason == "abort"
    assert len(last.outputs[0].token_ids) >= len(first.outputs[0].token_ids)
    assert (await asyncio.wrap_future(thread.call("stats")))["live"] == 0


async def test_a_killed_engine_fails_every_stream_within_a_second(start: StartThread) -> None:
    delays = random.Random(0)
    seconds = []
    for _ in range(3):
        thread, pid = start(False)
        mailbox = Mailbox(asyncio.get_running_loop())
        streams = [submit(thread, prepared(i, max_tokens=10**6), mailbox) for i in range(20)]
        await asyncio.sleep(delays.uniform(0, 0.1))
        os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        results = await asyncio.gather(*map(read_all, streams), return_exceptions=True)
        seconds.append(time.monotonic() - killed)
        assert all(isinstance(result, EngineDeadError) for result in results)
        assert "was killed by SIGKILL" in str(results[0])
        assert not thread.alive
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            submit(thread, prepared(99), mailbox)
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            thread.call("stats")
    assert sorted(seconds)[1] < 1  # a busy machine may be late once


@pytest.mark.parametrize("in_process", [True, False])
async def test_a_step_that_raises_fails_streams_with_its_cause(
    start: StartThread, in_process: bool
) -> None:
    thread, _ = start(in_process)
    mailbox = Mailbox(asyncio.get_running_loop())
    streams = [submit(thread, prepared(1, max_tokens=10**6), mailbox)]
    await streams[0].next()
    streams.append(submit(thread, prepared(2, last=FAIL_ENGINE), mailbox))
    for stream in streams:
        with pytest.raises(EngineDeadError, match="RuntimeError: illegal memory access"):
            await read_all(stream)


async def test_close_fails_streams_and_calls_that_wait(start: StartThread) -> None:
    thread, pid = start(False)
    stream = submit(thread, prepared(1, max_tokens=10**6), Mailbox(asyncio.get_running_loop()))
    await stream.next()
    thread.close()
    thread.close()
    with pytest.raises(EngineDeadError, match="was closed"):
        await read_all(stream)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_utility_that_raises_is_its_callers_error_only(start: StartThread) -> None:
    thread, _ = start(False)
    with pytest.raises(OctavoError, match="no engine method 'nonsense'"):
        await asyncio.wrap_future(thread.call("nonsense"))
    assert thread.alive


def test_requests_of_a_loop_that_was_closed_are_ended_in_the_engine(start: StartThread) -> None:
    thread, _ = start(True)

    async def leave_behind() -> None:
        stream = submit(thread, prepared(1, max_tokens=10**6), Mailbox(asyncio.get_running_loop()))
        await stream.next()

    asyncio.run(leave_behind())
    deadline = time.monotonic() + 30
    while thread.call("stats").result(30)["live"]:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_an_idle_thread_sleeps(start: StartThread) -> None:
    thread, _ = start(True)
    thread.call("stats").result(30)
    used = []
    for _ in range(5):  # other threads of this process may still end something
        before = time.process_time()
        time.sleep(0.3)
        used.append(time.process_time() - before)
        if used[-1] < 0.05:
            break
    assert min(used) < 0.05
    assert threading.active_count() >= 2


async def test_a_ring_for_an_output_that_was_read_already_is_no_news() -> None:
    mailbox = Mailbox(asyncio.get_running_loop())
    stream = OutputStream(mailbox, delta=False)
    first, second, third = (
        RequestOutput(str(i), None, [1], [], False, RequestMetrics(0.0)) for i in range(3)
    )
    mailbox.post([(stream, first)])
    await asyncio.sleep(0)  # the first ring
    mailbox.post([(stream, second)])
    assert await stream.next() is second
    reader = asyncio.create_task(stream.next())
    await asyncio.sleep(0.01)  # the second ring
    assert not reader.done()
    mailbox.post([(stream, third)])
    assert await reader is third


async def test_a_failure_comes_after_the_last_output() -> None:
    mailbox = Mailbox(asyncio.get_running_loop())
    stream = OutputStream(mailbox, delta=False)
    last = RequestOutput("r", None, [1], [], False, RequestMetrics(0.0))
    mailbox.post([(stream, last), (stream, EngineDeadError("gone"))])
    assert await stream.next() is last
    with pytest.raises(EngineDeadError, match="gone"):
        await stream.next()


def test_merged_deltas_keep_indices_apart() -> None:
    def delta(*outputs: CompletionOutput, finished: bool = False) -> RequestOutput:
        return RequestOutput("r", None, [1], list(outputs), finished, RequestMetrics(0.0))

    into = delta(CompletionOutput(1, "b", [7], token_starts=[0]))
    later = CompletionOutput(1, "c", [8], token_starts=[1])
    merge_delta(into, delta(CompletionOutput(0, "x", [1]), later))
    merge_delta(
        into, delta(CompletionOutput(1, "", [], finish_reason="stop", stop_reason=8), finished=True)
    )
    assert [(o.index, o.text, o.token_ids, o.token_starts) for o in into.outputs] == [
        (0, "x", [1], None),
        (1, "bc", [7, 8], [0, 1]),
    ]
    assert into.outputs[1].stop_reason == 8
    assert into.finished


def test_steps_are_joined_in_order_but_for_those_with_logprobs() -> None:
    one = StepOutputs(sequences=[1, 2], tokens=[5, 6], prompts=[PromptReport(1, 0)])
    two = StepOutputs(sequences=[1], tokens=[7], ends=[SequenceEnd(1, "length")], preempted=[2])
    three = StepOutputs(sequences=[2], tokens=[8], logprobs={2: [SequenceLogprobs([8], [-1.0], 1)]})
    joined = join_steps([one, two, three, one, two])
    both = StepOutputs(
        sequences=[1, 2, 1],
        tokens=[5, 6, 7],
        ends=two.ends,
        prompts=one.prompts,
        preempted=[2],
    )
    assert joined == [both, three, both]


def test_joined_steps_count_the_tokens_of_each_where_one_has_a_burst() -> None:
    single = StepOutputs(sequences=[1, 2], tokens=[5, 6])
    burst = StepOutputs(sequences=[2, 1], tokens=[7, 8, 9], counts=[2, 1])
    (joined,) = join_steps([single, burst, single])
    assert [*joined.by_sequence()] == [
        *single.by_sequence(),
        *burst.by_sequence(),
        *single.by_sequence(),
    ]


async def test_a_mailbox_is_busy_until_its_readers_have_run() -> None:
    mailbox = Mailbox(asyncio.get_running_loop())
    stream = OutputStream(mailbox, delta=True)
    busy_while_reading = []

    async def read() -> None:
        await stream.next()
        busy_while_reading.append(mailbox.is_busy)

    reader = asyncio.create_task(read())
    await asyncio.sleep(0)
    output = RequestOutput("r", None, [1], [], False, RequestMetrics(0.0))
    mailbox.post([(stream, output)])
    assert mailbox.is_busy
    await reader
    assert busy_while_reading == [True]
    await asyncio.sleep(0)
    assert not mailbox.is_busy


async def test_between_groups_of_readers_the_loop_does_other_things() -> None:
    loop = asyncio.get_running_loop()
    mailbox = Mailbox(loop)
    streams = [OutputStream(mailbox, delta=True) for _ in range(3 * AT_ONCE)]
    num_read = 0
    seen: list[int] = []

    async def read(stream: OutputStream) -> None:
        nonlocal num_read
        await stream.next()
        num_read += 1

    def look() -> None:
        seen.append(num_read)
        if num_read < len(streams):
            loop.call_soon(look)

    readers = [asyncio.create_task(read(stream)) for stream in streams]
    await asyncio.sleep(0)
    output = RequestOutput("r", None, [1], [], False, RequestMetrics(0.0))
    mailbox.post([(stream, output) for stream in streams])
    look()
    await asyncio.gather(*readers)
    assert {AT_ONCE, 2 * AT_ONCE} <= set(seen)
