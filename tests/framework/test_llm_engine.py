"""``LLMEngine`` and ``AsyncLLMEngine`` on octavo/tiny."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from octavo import LLM, AsyncEngineArgs, AsyncLLMEngine, EngineArgs, LLMEngine, SamplingParams
from octavo.errors import AdapterError, EngineDeadError, ParameterError, PromptError
from octavo.outputs import RequestOutput
from octavo.params import LoRARequest, RequestOutputKind

SMALL: dict[str, Any] = {"max_model_len": 128, "num_threads": 1, "max_num_seqs": 4}
TEXTS = ["The capital of France is", "The capital of Spain is", "Hello"]
PIRATE = "octavo/tiny-pirate"
GREEDY = SamplingParams(temperature=0.0, max_tokens=6)


@pytest.fixture(scope="module", params=["in process", "process"])
def engine(request: pytest.FixtureRequest) -> Iterator[LLMEngine]:
    is_apart = request.param == "process"
    with LLMEngine("octavo/tiny", engine_process=is_apart, **SMALL) as engine:
        yield engine


@pytest.fixture(scope="module")
def expected() -> list[RequestOutput]:
    with LLM.from_engine_args(EngineArgs("octavo/tiny", **SMALL)) as llm:
        return llm.generate(TEXTS, GREEDY, use_tqdm=False)


def texts(outputs: list[RequestOutput]) -> list[str]:
    return [output.outputs[0].text for output in outputs]


def finish(engine: LLMEngine) -> list[RequestOutput]:
    """Step to the end; the outputs, in the order in which they came."""
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    return outputs


def test_requests_that_are_added_step_by_step_give_what_a_batch_gives(
    engine: LLMEngine, expected: list[RequestOutput]
) -> None:
    ended: dict[str, RequestOutput] = {}
    waiting = list(enumerate(TEXTS))
    while waiting or engine.has_unfinished_requests():
        if waiting:
            number, text = waiting.pop(0)
            engine.add_request(str(number), text, GREEDY)
        for output in engine.step():
            if output.finished:
                ended[output.request_id] = output
    assert texts([ended[str(i)] for i in range(len(TEXTS))]) == texts(expected)
    assert engine.step() == []


def test_outputs_grow_or_are_new_or_come_once_as_asked(engine: LLMEngine) -> None:
    for kind in RequestOutputKind:
        params = SamplingParams(temperature=0.0, max_tokens=6, output_kind=kind)
        engine.add_request(kind.value, TEXTS[0], params)
    outputs = finish(engine)
    new = texts([o for o in outputs if o.request_id == "delta"])
    grown = texts([o for o in outputs if o.request_id == "cumulative"])
    (final,) = texts([o for o in outputs if o.request_id == "final"])
    assert "".join(new) == grown[-1] == final
    assert len(grown) > 1
    assert all(later.startswith(earlier) for earlier, later in pairwise(grown))


def test_several_continuations_are_one_request(engine: LLMEngine) -> None:
    engine.add_request("n", TEXTS[0], SamplingParams(n=3, seed=1, max_tokens=4))
    assert engine.get_num_unfinished_requests() == 1
    assert len(finish(engine)[-1].outputs) == 3


def test_nothing_comes_of_a_request_that_was_aborted(engine: LLMEngine) -> None:
    for name in ("a", "b", "c", "d"):
        engine.add_request(name, TEXTS[0], SamplingParams(max_tokens=100, ignore_eos=True))
    engine.step()
    engine.abort_request("a")
    engine.abort_request(["b", "unknown"])
    assert engine.get_num_unfinished_requests() == 2
    assert {output.request_id for output in finish(engine)} == {"c", "d"}


def test_what_is_wrong_with_a_request_is_raised_and_the_others_go_on(engine: LLMEngine) -> None:
    engine.add_request("a", TEXTS[0], GREEDY)
    for name, prompt, error in (("a", "x", ParameterError), ("b", "x " * 500, PromptError)):
        with pytest.raises(error):
            engine.add_request(name, prompt, GREEDY)
    assert engine.get_num_unfinished_requests() == 1
    assert finish(engine)[-1].finished


def test_an_engine_that_was_closed_says_so() -> None:
    engine = LLMEngine("octavo/tiny", **SMALL)
    engine.add_request("a", TEXTS[0], GREEDY)
    engine.close()
    engine.close()
    for call in (engine.step, lambda: engine.add_request("b", "x"), engine.reset_prefix_cache):
        with pytest.raises(EngineDeadError, match="was closed"):
            call()


def test_an_async_engine_gives_what_a_batch_gives(expected: list[RequestOutput]) -> None:
    async def main() -> None:
        args = AsyncEngineArgs("octavo/tiny", **SMALL)
        engine = AsyncLLMEngine.from_engine_args(args)
        streams = [await engine.add_request(str(i), text, GREEDY) for i, text in enumerate(TEXTS)]
        assert engine.get_num_unfinished_requests() == len(TEXTS)
        assert engine.has_unfinished_requests()
        with pytest.raises(ParameterError, match="'0' is in use"):
            await engine.add_request("0", "x", GREEDY)
        last = [[output async for output in stream][-1] for stream in streams]
        assert texts(last) == texts(expected)
        assert not engine.has_unfinished_requests()

        params = SamplingParams(temperature=0.0, max_tokens=6, output_kind=RequestOutputKind.DELTA)
        parts = [output async for output in engine.generate(TEXTS[0], params, "by place")]
        assert parts[0].request_id == "by place"
        assert "".join(texts(parts)) == expected[0].outputs[0].text
        await engine.check_health()
        assert engine.is_running
        assert not engine.errored
        engine.shutdown()
        assert engine.errored
        assert "closed" in str(engine.dead_error)
        with pytest.raises(EngineDeadError):
            await engine.check_health()

    asyncio.run(main())


def test_requests_of_an_async_engine_end_when_they_are_aborted() -> None:
    async def main() -> None:
        endless = SamplingParams(max_tokens=100, ignore_eos=True)
        async with AsyncLLMEngine("octavo/tiny", engine_process=False, **SMALL) as engine:
            streams = [await engine.add_request(name, TEXTS[0], endless) for name in "abc"]
            await engine.abort_request("a")
            await engine.abort_request(["b", "unknown"])
            last = [[output async for output in stream][-1] for stream in streams]
            reasons = [output.outputs[0].finish_reason for output in last]
            assert reasons == ["abort", "abort", "length"]

    asyncio.run(main())


@pytest.mark.parametrize("how", ["closed", "dropped", "cancelled", "closed when begun"])
def test_a_request_ends_with_outputs_that_nobody_reads(how: str) -> None:
    async def main() -> None:
        endless = SamplingParams(max_tokens=900, ignore_eos=True)
        async with AsyncLLMEngine("octavo/tiny", engine_process=False, **SMALL) as engine:
            outputs = await engine.add_request("a", TEXTS[0], endless)
            assert engine.get_num_unfinished_requests() == 1
            if how == "closed when begun":
                await anext(outputs)
            if how == "dropped":
                del outputs
                gc.collect()
                await asyncio.sleep(0)
            elif how == "cancelled":
                with pytest.raises(asyncio.CancelledError):
                    await outputs.athrow(asyncio.CancelledError)
            else:
                await outputs.aclose()
                await outputs.aclose()
            assert engine.get_num_unfinished_requests() == 0
            while (await engine.stats())["num_running"]:
                await asyncio.sleep(0.01)
            again = await engine.add_request("a", TEXTS[0], GREEDY)
            assert [output async for output in again][-1].finished

    asyncio.run(main())


def test_a_request_may_have_an_adapter() -> None:
    params = SamplingParams(temperature=0.0, max_tokens=3, logprobs=0)
    with LLMEngine("octavo/tiny", enable_lora=True, **SMALL) as engine:
        engine.add_request("plain", TEXTS[0], params)
        engine.add_request("adapted", TEXTS[0], params, lora_request=LoRARequest(PIRATE))
        with pytest.raises(AdapterError):
            engine.add_request("none", TEXTS[0], params, lora_request=LoRARequest("no/folder"))
        with pytest.raises(ParameterError, match="'pirate' must be a LoRARequest"):
            engine.add_request("none", TEXTS[0], params, lora_request="pirate")
        last = {output.request_id: output for output in finish(engine) if output.finished}
    assert set(last) == {"plain", "adapted"}
    assert last["plain"].outputs[0].logprobs != last["adapted"].outputs[0].logprobs
