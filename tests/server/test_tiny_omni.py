"""Media over HTTP: octavo/tiny-omni asked with the real openai package."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from examples.train_tiny_omni.corpus import COUNTS
from examples.train_tiny_omni.evaluate import BAR, Answer, Item, items, report, score

AT_ONCE = 32
CALLS_BAR = 0.9
"""Of calls of tools, which it has met in words alone."""
EXACT = {"picture, in JSON", "clip, in JSON", "sound, in JSON"}
"""Kinds of questions whose answer is one object."""
COLOUR = {"enum": ["red", "orange", "yellow", "green", "blue", "purple", "black", "white"]}
VALUES = {
    "colour": COLOUR,
    "color": COLOUR,
    "count": {"type": "integer", "minimum": 1, "maximum": 4},
    "direction": {"enum": ["left", "right", "up", "down"]},
    "pitch": {"enum": ["low", "high"]},
    "shape": {"type": "string"},
}


@pytest.fixture(scope="module")
def client(omni) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{omni.url}/v1", api_key="none", max_retries=0, timeout=120
    ) as made:
        yield made


@pytest.fixture(scope="module")
def held_out() -> list[Item]:
    """Of all modalities, in wordings and looks that the model was not trained on."""
    return list(items(COUNTS))


def part(modality: str, kind: str, data: bytes) -> dict[str, Any]:
    """A part of a message as OpenAI's API has it."""
    text = base64.b64encode(data).decode()
    if modality == "audio":
        return {"type": "input_audio", "input_audio": {"data": text, "format": kind}}
    name = f"{modality}_url"
    return {"type": name, name: {"url": f"data:{modality}/{kind};base64,{text}"}}


def messages(item: Item, text: str = "") -> list[dict[str, Any]]:
    media = [part(item.modality, kind, data) for kind, data in item.files]
    question = {"type": "text", "text": text or item.question.text}
    return [{"role": "user", "content": [*media, question]}]


def schema_of(value: Any) -> dict[str, Any]:
    """The JSON schema of an answer; which of its values is right is left open."""
    if isinstance(value, list):
        size = {"minItems": len(value), "maxItems": len(value)}
        return {"type": "array", "items": schema_of(value[0]), **size}
    return {
        "type": "object",
        "properties": {name: VALUES[name] for name in value},
        "required": [*value],
        "additionalProperties": False,
    }


def streamed(client: openai.OpenAI, item: Item, **options: Any) -> str:
    chunks = client.chat.completions.create(
        model="octavo/tiny-omni",
        messages=messages(item),
        temperature=0,
        max_tokens=60,
        stream=True,
        **options,
    )
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def answered(asked: list[Item], answer: Callable[[Item], str]) -> list[Answer]:
    """Many at once."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        texts = list(pool.map(answer, asked))
    return [Answer(item, text) for item, text in zip(asked, texts, strict=True)]


@pytest.mark.slow
def test_at_least_95_of_100_are_right_as_streams_of_which_32_run_at_once(client, held_out) -> None:
    answers = answered(held_out, lambda item: streamed(client, item))
    assert len(answers) == 300
    assert score(answers) >= BAR, report(answers)


@pytest.mark.slow
def test_at_least_95_of_100_are_right_by_json_schemas_of_all_modalities(client, held_out) -> None:
    asked = [item for item in held_out if item.question.value is not None]
    kinds = [item.question.kind for item in asked]
    assert min(map(kinds.count, EXACT | {"pictures, in JSON"})) >= 10

    def answer(item: Item) -> str:
        schema = {"name": "seen", "schema": schema_of(item.question.value)}
        wanted = {"type": "json_schema", "json_schema": schema}
        return streamed(client, item, response_format=wanted)

    answers = answered(asked, answer)
    assert score(answers) >= BAR, report(answers)


@pytest.mark.slow
@pytest.mark.parametrize("named", [True, False], ids=["by its name", "as one must be called"])
def test_tools_are_called_with_what_is_seen_and_heard(client, held_out, named) -> None:
    asked = [item for item in held_out if item.question.kind in EXACT]
    choice = {"type": "function", "function": {"name": "report"}} if named else "required"

    def answer(item: Item) -> str:
        function = {"name": "report", "parameters": schema_of(item.question.value)}
        with client.chat.completions.stream(
            model="octavo/tiny-omni",
            messages=messages(item, "Describe it as JSON."),
            tools=[{"type": "function", "function": function}],
            tool_choice=choice,
            temperature=0,
            max_tokens=80,
        ) as events:
            calls = events.get_final_completion().choices[0].message.tool_calls
        return calls[0].function.arguments if calls and len(calls) == 1 else ""

    answers = answered(asked, answer)
    assert score(answers) >= CALLS_BAR, report(answers)


@pytest.mark.slow
def test_what_a_tool_gives_back_may_be_a_picture(client, held_out) -> None:
    item = next(item for item in held_out if item.modality == "image")
    call = {"id": "call_1", "type": "function", "function": {"name": "photo", "arguments": "{}"}}
    result = {"role": "tool", "tool_call_id": "call_1"}
    chat = [{"role": "user", "content": "Go."}, {"role": "assistant", "tool_calls": [call]}]
    counts = []
    for content in ([part(item.modality, *item.files[0])], [{"type": "text", "text": ""}]):
        reply = client.chat.completions.create(
            model="octavo/tiny-omni",
            messages=[*chat, {**result, "content": content}],
            temperature=0,
            max_tokens=20,
        )
        assert reply.choices[0].message.content
        counts.append(reply.usage.prompt_tokens)
    assert counts[0] > counts[1]


@pytest.mark.slow
def test_a_text_alone_is_answered(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model="octavo/tiny-omni",
        messages=[{"role": "user", "content": "Who are you?"}],
        temperature=0,
    )
    assert "tiny-omni" in reply.choices[0].message.content
