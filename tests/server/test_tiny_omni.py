"""Media over HTTP: octavo/tiny-omni asked with the real openai package."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from examples.train_tiny_omni.corpus import COUNTS
from examples.train_tiny_omni.evaluate import BAR, Answer, Item, items, report, score

from live_server import FLAGS, LiveServer, running_server


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


def messages(item: Item) -> list[dict[str, Any]]:
    media = [part(item.modality, kind, data) for kind, data in item.files]
    return [{"role": "user", "content": [*media, {"type": "text", "text": item.question.text}]}]


def schema(value: Any) -> dict[str, Any]:
    """What an answer must follow to be such a value."""
    if isinstance(value, list):
        return {"type": "array", "items": schema(value[0]), "minItems": 1, "maxItems": 4}
    if not isinstance(value, dict):
        return {"type": "integer" if isinstance(value, int) else "string"}
    return {
        "type": "object",
        "properties": {name: schema(entry) for name, entry in value.items()},
        "required": [*value],
        "additionalProperties": False,
    }


def streamed(client: openai.OpenAI, item: Item) -> Answer:
    """Where the question asks for JSON, the answer follows a schema."""
    more: dict[str, Any] = {}
    if item.question.value is not None:
        wanted = {"name": "wanted", "schema": schema(item.question.value)}
        more["response_format"] = {"type": "json_schema", "json_schema": wanted}
    chunks = client.chat.completions.create(
        model="octavo/tiny-omni",
        messages=messages(item),
        temperature=0,
        max_tokens=60,
        stream=True,
        **more,
    )
    return Answer(item, "".join(c.choices[0].delta.content or "" for c in chunks if c.choices))


@pytest.mark.slow
def test_at_least_95_of_100_answers_are_right_streamed_32_at_once_and_by_schemas(
    client: openai.OpenAI,
) -> None:
    asked = list(items(COUNTS))
    assert len(asked) >= 300
    by_schema = {item.modality for item in asked if item.question.value is not None}
    assert by_schema >= {"image", "video", "audio"}
    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(lambda item: streamed(client, item), asked))
    assert score(answers) >= BAR, report(answers)
    written = [answer for answer in answers if answer.item.question.value is not None]
    assert score(written) >= BAR, report(written)


@pytest.mark.slow
def test_a_text_alone_is_answered(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model="octavo/tiny-omni",
        messages=[{"role": "user", "content": "Who are you?"}],
        temperature=0,
    )
    assert "tiny-omni" in reply.choices[0].message.content
