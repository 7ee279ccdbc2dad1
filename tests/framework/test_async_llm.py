"""``AsyncLLM`` on a tiny random model, with the engine in both places."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, AsyncLLM, SamplingParams
from octavo.engine.process_client import ProcessClient
from octavo.errors import (
    ConfigError,
    EngineDeadError,
    ParameterError,
    PromptError,
    QueueFullError,
)
from octavo.frontend.async_requests import COMPILING_THREADS
from octavo.outputs import RequestOutput
from octavo.params import GuidedParams, OutputKind
from octavo.testing.random_model import make_random_model

TEXTS = ["The capital of France", "A book begins", "She said", "def count(words):"]
ENDLESS = SamplingParams(max_tokens=1000, ignore_eos=True)
SMALL: dict[str, Any] = {
    "num_blocks": 512,
    "max_num_seqs": 16,
    "max_num_batched_tokens": 64,
    "num_threads": 1,
}


def greedy(kind: OutputKind = "cumulative", **more: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, output_kind=kind, **more)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_random_model(tmp_path_factory.mktemp("model"), vocab_size=320)


@pytest.fixture(scope="module", params=["process", "in process"])
def llm(folder: Path, request: pytest.FixtureRequest) -> Iterator[AsyncLLM]:
    llm = AsyncLLM(folder, engine_process=request.param == "process", **SMALL)
    yield llm
    llm.close()


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[RequestOutput]:
    with LLM(folder, **SMALL) as llm:
        return llm.generate(TEXTS, greedy(), use_tqdm=False)


async def idle(llm: AsyncLLM) -> bool:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        stats = await llm.stats()
        if stats["num_running"] == stats["num_waiting"] == 0:
            return True
        await asyncio.sleep(0.01)
    return False


async def collect(llm: AsyncLLM, text: str, params: SamplingParams) -> list[RequestOutput]:
    return [output async for output in llm.generate(text, params)]


async def test_concurrent_requests_give_what_a_batch_gives(
    llm: AsyncLLM, expected: list[RequestOutput]
) -> None:
    results = await asyncio.gather(*(collect(llm, text, greedy()) for text in TEXTS * 5))
    for i, outputs in enumerate(results):
        whole = expected[i % len(TEXTS)].outputs[0]
        assert outputs[-1].outputs[0].token_ids == whole.token_ids
        assert outputs[-1].outputs[0].text == whole.text
        texts = [output.outputs[0].text for output in outputs]
        assert all(later.startswith(earlier) for earlier, later in pairwise(texts))


async def test_deltas_add_up_and_final_comes_once(
    llm: AsyncLLM, expected: list[RequestOutput]
) -> None:
    deltas = await collect(llm, TEXTS[0], greedy("delta", logprobs=1))
    assert "".join(o.outputs[0].text for o in deltas) == expected[0].outputs[0].text
    tokens = [t for o in deltas for t in o.outputs[0].token_ids]
    assert tokens == expected[0].outputs[0].token_ids
    assert sum(len(o.outputs[0].logprobs or ()) for o in deltas) == len(tokens)
    (final,) = await collect(llm, TEXTS[0], greedy("final"))
    assert final.outputs[0].text == expected[0].outputs[0].text


async def test_a_chat_is_its_rendered_template(llm: AsyncLLM) -> None:
    chat = [{"role": "user", "content": "hello"}]
    outputs = [o async for o in llm.chat(chat, greedy())]
    text = llm.get_tokenizer().apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert outputs[-1].prompt == text


async def test_leaving_a_generator_frees_the_request(llm: AsyncLLM) -> None:
    async for _ in llm.generate("a", ENDLESS):
        break
    assert await idle(llm)
    generator = llm.generate("a", ENDLESS, request_id="mine")
    await anext(generator)
    await generator.aclose()
    again = llm.generate("a", greedy(), request_id="mine")
    assert (await anext(again)).request_id == "mine"
    await again.aclose()
    assert await idle(llm)


async def test_cancelling_a_task_frees_its_request(llm: AsyncLLM) -> None:
    tasks = [asyncio.create_task(collect(llm, "a", ENDLESS)) for _ in range(8)]
    await asyncio.sleep(0.1)
    for task in tasks:
        task.cancel()
    assert all(
        isinstance(result, asyncio.CancelledError)
        for result in await asyncio.gather(*tasks, return_exceptions=True)
    )
    assert await idle(llm)


async def test_a_storm_of_read_left_and_cancelled_requests_leaves_nothing(llm: AsyncLLM) -> None:
    choices = random.Random(0)

    async def read(i: int) -> None:
        kind = choices.choice(("cumulative", "delta", "final"))
        limits = {"max_tokens": choices.randint(1, 20), "n": choices.randint(1, 3)}
        params = SamplingParams(**limits, seed=i, ignore_eos=True, output_kind=kind)
        counts = dict.fromkeys(range(params.n), 0)
        leaves = choices.random() < 0.2
        async for output in llm.generate("A book " * choices.randint(1, 8), params):
            if leaves:
                return
            for completion in output.outputs:
                before = counts[completion.index] if kind == "delta" else 0
                counts[completion.index] = before + len(completion.token_ids)
            await asyncio.sleep(choices.choice((0, 0, 0.01)))
        assert set(counts.values()) == {params.max_tokens}

    tasks = [asyncio.create_task(read(i)) for i in range(80)]
    for task in choices.sample(tasks, 10):
        await asyncio.sleep(0.01)
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(result) for result in results} <= {type(None), asyncio.CancelledError}
    assert await idle(llm)


async def test_an_abort_gives_the_last_output(llm: AsyncLLM) -> None:
    outputs = []
    async for output in llm.generate("a", ENDLESS, request_id="r"):
        if not outputs:
            await llm.abort("r")
        outputs.append(output)
    assert outputs[-1].outputs[0].finish_reason == "abort"
    assert await idle(llm)


async def test_bad_requests_raise_and_touch_nobody(llm: AsyncLLM) -> None:
    other = asyncio.create_task(collect(llm, TEXTS[0], greedy()))
    with pytest.raises(PromptError, match="empty"):
        await collect(llm, "", greedy())
    running = llm.generate("a", ENDLESS, request_id="twice")
    await anext(running)
    with pytest.raises(ParameterError, match="request_id='twice' is in use"):
        await anext(llm.generate("a", ENDLESS, request_id="twice"))
    await running.aclose()
    assert (await other)[-1].finished


async def test_a_long_prompt_does_not_stop_the_event_loop(llm: AsyncLLM) -> None:
    async def longest_gap() -> tuple[float, float]:
        """Of the event loop while a prompt is refused, and how long that takes."""
        gaps = [0.0]

        async def tick() -> None:
            while True:
                before = time.monotonic()
                await asyncio.sleep(0.001)
                gaps.append(time.monotonic() - before)

        ticker = asyncio.create_task(tick())
        began = time.monotonic()
        with pytest.raises(PromptError, match="shorten it"):
            await collect(llm, "The capital of France is. " * 8_000, greedy())
        ticker.cancel()
        return max(gaps), time.monotonic() - began

    tries = [await longest_gap() for _ in range(3)]  # a busy machine makes gaps of its own
    assert any(gap < max(0.1, took / 2) for gap, took in tries)


async def test_a_reset_reaches_the_engine(llm: AsyncLLM) -> None:
    assert await idle(llm)
    assert await llm.reset_prefix_cache() is True


def test_one_llm_serves_one_event_loop_after_another(llm: AsyncLLM) -> None:
    for _ in range(2):
        assert asyncio.run(collect(llm, "a", greedy()))[-1].finished


async def test_a_refused_request_raises_and_the_others_go_on(folder: Path) -> None:
    options = {**SMALL, "max_num_seqs": 1}
    long = SamplingParams(max_tokens=200, ignore_eos=True)  # the first runs till all have come
    async with AsyncLLM(folder, engine_process=False, max_queued_requests=1, **options) as llm:
        results = await asyncio.gather(
            *(collect(llm, text, long) for text in TEXTS), return_exceptions=True
        )
    failed = [result for result in results if isinstance(result, QueueFullError)]
    assert 0 < len(failed) < len(TEXTS)
    assert all(isinstance(r, QueueFullError) or r[-1].finished for r in results)  # type: ignore[index]


async def test_a_killed_engine_fails_every_request_at_once(folder: Path) -> None:
    async with AsyncLLM(folder, **SMALL) as llm:
        client = llm._front.client
        assert isinstance(client, ProcessClient)
        tasks = [asyncio.create_task(collect(llm, "a", ENDLESS)) for _ in range(20)]
        await asyncio.sleep(0.2)
        os.kill(client.pid, signal.SIGKILL)
        killed = time.monotonic()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert time.monotonic() - killed < 10
        assert {type(result) for result in results} == {EngineDeadError}
        assert not llm.alive
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            await collect(llm, "a", greedy())


async def test_another_engine_starts_when_the_first_ones_process_has_ended(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncLLM(folder, **SMALL) as llm:
        first = llm._front.client
        assert isinstance(first, ProcessClient)
        # As an engine that has said why it fails and still frees its device.
        thread, receive = llm._engine, first._receive

        def failing(timeout_seconds: float) -> Any:
            receive(timeout_seconds)
            raise EngineDeadError("its step failed")

        first._receive = failing  # type: ignore[method-assign]
        while thread.end is None:
            first.wake()
            await asyncio.sleep(0.01)
        codes = []
        start = type(llm._front).with_new_engine

        def started(front: Any) -> Any:
            codes.append(first._process.poll())
            return start(front)

        monkeypatch.setattr(type(llm._front), "with_new_engine", started)
        await asyncio.to_thread(llm.restart)
        assert codes == [0]
        assert (await collect(llm, "a", greedy()))[-1].finished


async def test_close_ends_what_waits(folder: Path) -> None:
    llm = AsyncLLM(folder, engine_process=False, **SMALL)
    waiting = asyncio.create_task(collect(llm, "a", ENDLESS))
    await asyncio.sleep(0.05)
    await asyncio.to_thread(llm.close)
    llm.close()
    with pytest.raises(EngineDeadError, match="was closed"):
        await waiting
    with pytest.raises(EngineDeadError, match="was closed"):
        await collect(llm, "a", greedy())


def test_bad_options_are_the_callers_by_name(folder: Path) -> None:
    make: Callable[..., AsyncLLM] = AsyncLLM
    with pytest.raises(TypeError, match=r"AsyncLLM\(\) got .* 'max_model_length'"):
        make(str(folder), max_model_length=5)
    with pytest.raises(ConfigError, match="speculative_config"):
        make(str(folder), speculative_config={"model": "x"})


async def test_closing_ends_the_threads_that_compile_constraints_and_who_waits_for_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, released = threading.Semaphore(0), threading.Event()

    def compile_slowly(*args: object, **options: object) -> None:
        entered.release()
        released.wait(60)
        raise ValueError("what compiles was ended")

    monkeypatch.setattr("octavo.inputs.InputProcessor.process", compile_slowly)
    llm = AsyncLLM(folder, engine_process=False, **SMALL)
    guided = SamplingParams(guided=GuidedParams(regex="a"))
    waiting = [asyncio.create_task(collect(llm, "x", guided)) for _ in range(COMPILING_THREADS + 4)]
    for _ in range(COMPILING_THREADS):
        assert await asyncio.to_thread(entered.acquire, timeout=20)
    await asyncio.to_thread(llm.close)
    released.set()
    for ended in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(ended, EngineDeadError), ended
    with pytest.raises(EngineDeadError):
        await collect(llm, "x", guided)
    deadline = time.monotonic() + 20
    while any(thread.name.startswith("octavo-compiling") for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
