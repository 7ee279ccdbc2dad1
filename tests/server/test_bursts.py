"""Steps that bring several tokens of a sequence give the answers of those that bring one."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from octavo.engine.core import EngineCore
from octavo.frontend.async_llm import AsyncLLM
from octavo.messages import SequenceLogprobs, StepOutputs
from server_in_process import MODEL, clients

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
QUESTION = [{"role": "user", "content": "What is the weather in Paris?"}]
BODIES: dict[str, dict[str, Any]] = {
    "plain": {"max_tokens": 30},
    "log probabilities": {"max_tokens": 20, "logprobs": True, "top_logprobs": 2, "n": 2, "seed": 5},
    "a stop string": {"max_tokens": 60, "stop": ["a", "e"], "temperature": 1, "seed": 3},
    "a tool called": {"max_tokens": 150, "tools": [WEATHER]},
    "a tool required": {
        "max_tokens": 150,
        "tools": [WEATHER],
        "tool_choice": "required",
        "temperature": 1,
        "seed": 1,
        "n": 3,
    },
    "an answer of a form": {
        "max_tokens": 80,
        "response_format": {
            "type": "json_schema",
            "json_schema": {
                "name": "place",
                "schema": WEATHER["function"]["parameters"],
                "strict": False,
            },
        },
    },
}


def in_bursts(step: Callable[[EngineCore], StepOutputs], rng: random.Random):
    """A step of the engine that is one to five of them."""

    def together(core: EngineCore) -> StepOutputs:
        joined = StepOutputs()
        tokens: dict[int, list[int]] = {}
        logprobs: dict[int, list[SequenceLogprobs]] = joined.logprobs
        for _ in range(rng.randint(1, 5)):
            if core.has_work:
                outputs = step(core)
                for sequence, new in outputs.by_sequence():
                    tokens.setdefault(sequence, []).extend(new)
                for sequence, entries in outputs.logprobs.items():
                    logprobs.setdefault(sequence, []).extend(entries)
                joined.ends.extend(outputs.ends)
                joined.prompts.extend(outputs.prompts)
                joined.preempted.extend(outputs.preempted)
        for sequence, burst in tokens.items():
            joined.add(sequence, burst)
        bursts.append(max(joined.counts, default=0))
        return joined

    bursts: list[int] = []
    return together, bursts


def told(completion: Any) -> dict[str, Any]:
    """What there is besides names and times."""
    whole = completion.model_dump(exclude={"id", "created", "guided"})
    for choice in whole["choices"]:
        for call in choice["message"]["tool_calls"] or []:
            del call["id"]
            call.pop("index", None)
    return whole


async def streamed(client: Any, body: dict[str, Any]) -> dict[str, Any]:
    """An answer put together from its pieces by the package itself, and its usage."""
    async with client.chat.completions.stream(
        model=MODEL, stream_options={"include_usage": True}, **body
    ) as events:
        return told(await events.get_final_completion())


@pytest.mark.parametrize("name", BODIES)
async def test_answers_are_the_same_in_bursts(
    engine: AsyncLLM, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (client,) = clients(engine)
    body = {"messages": QUESTION, "temperature": 0} | BODIES[name]
    await client.chat.completions.create(model=MODEL, **body | {"max_tokens": 1})  # cached now
    one_by_one = await client.chat.completions.create(model=MODEL, **body)
    stream_one_by_one = await streamed(client, body)
    together, bursts = in_bursts(EngineCore.step, random.Random(name))
    monkeypatch.setattr(EngineCore, "step", together)
    assert told(await client.chat.completions.create(model=MODEL, **body)) == told(one_by_one)
    assert await streamed(client, body) == stream_one_by_one
    assert max(bursts) > 1
    usage = one_by_one.usage
    assert 0 < usage.completion_tokens <= body["max_tokens"] * body.get("n", 1)
    if "tool" in name:
        assert all(choice.message.tool_calls for choice in one_by_one.choices)
