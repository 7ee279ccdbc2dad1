"""Media over HTTP: octavo/tiny-omni asked with the real openai package."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from examples.train_tiny_omni.evaluate import Answer, Item, items, report

from live_server import FLAGS, LiveServer, running_server

COUNTS = {"picture": 10, "pictures": 6, "clip": 8, "sound": 8}
"""32 requests."""
MOST_WRONG = 1
SCHEMA = {
    "type": "object",
    "properties": {
        "shape": {"type": "string"},
        "colour": {
            "enum": ["red", "orange", "yellow", "green", "blue", "purple", "black", "white"]
        },
    },
    "required": ["shape", "colour"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    log = tmp_path_factory.mktemp("server") / "log"
    with running_server(log, base=("octavo/tiny-omni", *FLAGS)) as server:
        yield server


@pytest.fixture(scope="module")
def client(live: LiveServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0, timeout=120)


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


def streamed(client: openai.OpenAI, item: Item) -> str:
    chunks = client.chat.completions.create(
        model="octavo/tiny-omni",
        messages=messages(item),
        temperature=0,
        max_tokens=60,
        stream=True,
    )
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


@pytest.mark.slow
def test_32_at_once_are_answered_as_streams(client: openai.OpenAI) -> None:
    asked = list(items(COUNTS))
    assert len(asked) == 32
    with ThreadPoolExecutor(32) as pool:
        texts = list(pool.map(lambda item: streamed(client, item), asked))
    answers = [Answer(item, text) for item, text in zip(asked, texts, strict=True)]
    assert sum(not answer.right for answer in answers) <= MOST_WRONG, report(answers)


@pytest.mark.slow
def test_answers_follow_a_json_schema(client: openai.OpenAI) -> None:
    drawn = items({"picture": 30}, seed=18)
    asked = [item for item in drawn if item.question.kind == "picture, in JSON"]
    whole = [item for item in asked if len(item.question.value) == 2]
    assert len(whole) >= 3
    for item in whole[:4]:
        reply = client.chat.completions.create(
            model="octavo/tiny-omni",
            messages=messages(item, "Describe shape and colour as JSON."),
            temperature=0,
            max_tokens=60,
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "figure", "schema": SCHEMA},
            },
        )
        found = json.loads(reply.choices[0].message.content)
        assert sorted(found.values()) == sorted(item.question.value.values())
        assert reply.usage.prompt_tokens > 9


@pytest.mark.slow
def test_a_text_alone_is_answered(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model="octavo/tiny-omni",
        messages=[{"role": "user", "content": "Who are you?"}],
        temperature=0,
    )
    assert "tiny-omni" in reply.choices[0].message.content
