"""Answers to everyday schemas at temperature 1, asked for with OpenAI's own package."""

from __future__ import annotations

import asyncio
import json
from decimal import Decimal
from typing import Any

import openai
import pytest
from jsonschema import Draft202012Validator
from openai.lib._pydantic import to_strict_json_schema
from pydantic import BaseModel

from everyday_schemas import CLASSES, SCHEMAS

MODEL = "octavo/tiny"
ROUNDS = 4
MOST_TOKENS = 256


def question(name: str, seed: int) -> dict[str, Any]:
    """What all ways to ask have in common; a seed each, so that a run is like another."""
    content = f"Give me {name} as JSON, number {seed}."
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": content}],
        "temperature": 1,
        "max_tokens": MOST_TOKENS,
        "seed": seed,
    }


async def by_schema(client: openai.AsyncOpenAI, name: str, seed: int, stream: bool) -> str | None:
    """The answer; None where it was not finished."""
    asked = question(name, seed) | {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": SCHEMAS[name], "strict": True},
        }
    }
    if not stream:
        (choice,) = (await client.chat.completions.create(**asked)).choices
        return choice.message.content if choice.finish_reason == "stop" else None
    text, reason = "", None
    async for event in await client.chat.completions.create(**asked, stream=True):
        for choice in event.choices:
            text += choice.delta.content or ""
            reason = choice.finish_reason or reason
    assert reason in ("stop", "length")
    return text if reason == "stop" else None


async def by_class(
    client: openai.AsyncOpenAI, kind: type[BaseModel], seed: int, stream: bool
) -> str | None:
    """The same by the package's helpers, which read the answer as an object of the class."""
    asked = question(kind.__name__, seed) | {"response_format": kind}
    try:
        if stream:
            async with client.chat.completions.stream(**asked) as events:
                made = await events.get_final_completion()
        else:
            made = await client.chat.completions.parse(**asked)
    except openai.LengthFinishReasonError:
        return None
    (choice,) = made.choices
    assert isinstance(choice.message.parsed, kind)
    return choice.message.content


def exact(text: str) -> Any:
    """Without floats, in which 20.22 is no multiple of 0.01."""
    return json.loads(text, parse_float=Decimal)


@pytest.mark.slow
async def test_all_answers_that_finish_hold_to_their_schema_and_nearly_all_finish(
    server, capsys
) -> None:
    schemas = SCHEMAS | {kind.__name__: to_strict_json_schema(kind) for kind in CLASSES}
    assert len(schemas) == 50
    async with openai.AsyncOpenAI(
        base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120
    ) as client:

        async def one(name: str, number: int) -> tuple[str, str | None]:
            kind = next((kind for kind in CLASSES if kind.__name__ == name), None)
            if kind is None:
                return name, await by_schema(client, name, number, number % 2 == 0)
            return name, await by_class(client, kind, number, number % 2 == 0)

        asked = [one(name, number) for name in schemas for number in range(ROUNDS)]
        answers = await asyncio.gather(*asked)
    finished = [(name, text) for name, text in answers if text is not None]
    wrong = [
        (name, text, error.message)
        for name, text in finished
        for error in Draft202012Validator(
            exact(json.dumps(schemas[name])), format_checker=Draft202012Validator.FORMAT_CHECKER
        ).iter_errors(exact(text))
    ]
    with capsys.disabled():
        print(f"\n{len(finished)} of {len(answers)} finished, {len(wrong)} of them wrong")
    assert wrong == []
    assert len(finished) >= 0.9 * len(answers)
