"""Images and files in the input of /v1/responses."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from PIL import Image

from live_server import LiveServer
from octavo.errors import MessageError
from octavo.server.apis.responses.items import input_messages
from octavo.server.protocol.conversation import plain_messages
from octavo.server.protocol.notes import Notes

TEXT = base64.b64encode("naïve\ntext".encode()).decode()
MODEL = "octavo/tiny-omni"


@pytest.fixture(scope="module")
def seeing(omni: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{omni.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def picture() -> str:
    file = io.BytesIO()
    Image.new("RGB", (48, 32), "red").save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def user(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [*parts]}]


def read(*parts: dict[str, Any]) -> Any:
    (message,) = input_messages(user(*parts), None, Notes())
    return message["content"]


def test_a_picture_is_read_as_in_a_chat_and_again_in_the_next_turn(seeing) -> None:
    asked: dict[str, Any] = {"model": MODEL, "temperature": 0}
    text = "What is this?"
    image = {"type": "input_image", "image_url": picture(), "detail": "auto"}
    items = user(image, {"type": "input_text", "text": text})
    answer = seeing.responses.create(input=items, max_output_tokens=8, **asked)
    parts = [
        {"type": "image_url", "image_url": {"url": picture()}},
        {"type": "text", "text": text},
    ]
    chat = seeing.chat.completions.create(messages=user(*parts), max_tokens=8, **asked)
    assert answer.output_text == chat.choices[0].message.content
    assert answer.usage.input_tokens == chat.usage.prompt_tokens
    counted = seeing.responses.input_tokens.count(model=MODEL, input=items)
    assert counted.input_tokens == chat.usage.prompt_tokens
    after = seeing.responses.create(
        input="And now?", previous_response_id=answer.id, max_output_tokens=4, **asked
    )
    whole = [*items, *(item.to_dict() for item in answer.output), *user_text("And now?")]
    sent = seeing.responses.create(input=whole, max_output_tokens=4, **asked)
    assert after.usage.input_tokens == sent.usage.input_tokens
    assert after.output_text == sent.output_text


def user_text(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def test_a_model_without_eyes_refuses_a_picture(client) -> None:
    image = {"type": "input_image", "image_url": picture()}
    with pytest.raises(openai.BadRequestError, match="image") as raised:
        client.responses.create(model="octavo/tiny", input=user(image))
    assert raised.value.param == "input"


def test_pictures_that_tools_gave_follow_all_results_as_the_users() -> None:
    calls = [
        {"type": "function_call", "call_id": id, "name": "f", "arguments": "{}"} for id in "12"
    ]
    image = {"type": "input_image", "image_url": "data:,x"}
    results = [
        {"type": "function_call_output", "call_id": id, "output": [text("a"), image, text("b")]}
        for id in "12"
    ]
    given = [*calls, *results, *user_text("c")]
    messages = input_messages(given, None, Notes())
    assert [each["role"] for each in messages] == ["assistant", "tool", "tool", "user", "user"]
    assert messages[1]["content"] == "a\nb"
    part = {"type": "image_url", "image_url": {"url": "data:,x"}}
    assert messages[3]["content"] == [part, part]
    assert input_messages(given[:-1], None, Notes()) == messages[:-1]


def text(said: str) -> dict[str, Any]:
    return {"type": "input_text", "text": said}


@pytest.mark.parametrize("data", [TEXT, f"data:application/octet-stream;base64,{TEXT}"])
@pytest.mark.parametrize("key", ["file_data", "file_url"])
def test_a_file_is_read_as_its_text_behind_its_name(data: str, key: str) -> None:
    if key == "file_url" and not data.startswith("data:"):
        with pytest.raises(MessageError, match="not fetched"):
            read({"type": "input_file", key: data})
        return
    named = {"type": "input_file", key: data, "filename": "a.txt"}
    assert read(named) == [{"type": "text", "text": "a.txt:\nnaïve\ntext"}]
    assert read({"type": "input_file", key: data}) == [{"type": "text", "text": "naïve\ntext"}]


def test_a_file_in_a_chat_is_read_alike() -> None:
    file = {"type": "file", "file": {"file_data": TEXT, "filename": "a.txt"}}
    (message,) = plain_messages(user(file), Notes())
    assert message["content"] == [{"type": "text", "text": "a.txt:\nnaïve\ntext"}]
    for bad in ({"file_id": "1"}, {"file_data": "?"}, {}, None):
        with pytest.raises(MessageError, match=r"messages\[0\].content\[0\].file"):
            plain_messages(user({"type": "file", "file": bad}), Notes())


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"file_id": "file-1"}, "keeps no files"),
        ({"file_url": "https://example.com/a.txt"}, "not fetched"),
        ({"file_data": base64.b64encode(b"%PDF-1.7 text").decode()}, "is a PDF"),
        ({"file_data": base64.b64encode(b"PK\3\4\0\0").decode(), "filename": "a.docx"}, "a.docx"),
        ({"file_data": base64.b64encode(b"\xff\xfe").decode()}, "no text in UTF-8"),
        ({"file_data": "data:text/plain,a"}, "data:TYPE;base64,DATA"),
        ({"file_data": "?"}, "no valid base64"),
        ({"file_data": "A" * (16 * 2**20 + 4)}, "at most"),
        ({}, "must be text"),
        ({"filename": 1, "file_data": TEXT}, "filename must be text"),
    ],
)
def test_files_that_cannot_be_read_are_refused_with_the_reason(part, message) -> None:
    with pytest.raises(MessageError, match=message):
        read({"type": "input_file", **part})
    with pytest.raises(MessageError, match="keeps no files"):
        read({"type": "input_image", "file_id": "file-1"})
