"""Pictures and files in results of tools: a model that cannot read them is told, not the client."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import httpx
import pytest

from octavo.frontend.async_llm import AsyncLLM
from octavo.server.apis.messages.block_messages import chat_messages
from octavo.server.apis.responses.items import input_messages
from octavo.server.app import add_built_in_routes
from octavo.server.protocol.conversation import plain_messages
from octavo.server.protocol.notes import Notes
from server_in_process import clients

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
PDF = base64.b64encode(b"%PDF-1.4\n").decode()
URL = f"data:image/png;base64,{PNG}"
UNSEEN, UNREAD = "(image data, which cannot be read here)", "(a PDF, which cannot be read here)"

IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
DOCUMENT = {
    "type": "document",
    "source": {"type": "base64", "media_type": "application/pdf", "data": PDF},
}
USED = {"type": "tool_use", "id": "1", "name": "look", "input": {}}
GAVE = {"type": "tool_result", "tool_use_id": "1", "content": [IMAGE, DOCUMENT]}
BLOCKS = [
    {"role": "user", "content": "Look."},
    {"role": "assistant", "content": [USED]},
    {"role": "user", "content": [GAVE, DOCUMENT]},
]
ITEMS = [
    {"role": "user", "content": "Look."},
    {"type": "function_call", "call_id": "1", "name": "look", "arguments": "{}"},
    {
        "type": "function_call_output",
        "call_id": "1",
        "output": [
            {"type": "input_image", "image_url": URL},
            {"type": "input_file", "filename": "a.pdf", "file_data": PDF},
        ],
    },
]
CALL = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
RESULT = {
    "role": "tool",
    "tool_call_id": "1",
    "content": [
        {"type": "image_url", "image_url": {"url": URL}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": PDF}},
    ],
}
CHAT = [
    {"role": "user", "content": "Look."},
    {"role": "assistant", "tool_calls": [CALL]},
    RESULT,
]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/messages": {"messages": BLOCKS, "max_tokens": 4},
    "/v1/responses": {"input": ITEMS, "max_output_tokens": 4},
    "/v1/chat/completions": {"messages": CHAT, "max_tokens": 4},
}


@pytest.mark.parametrize("path", BODIES)
def test_a_conversation_goes_on_behind_what_a_model_cannot_read(http: httpx.Client, path) -> None:
    reply = http.post(path, json=BODIES[path])
    assert reply.status_code == 200, reply.text
    told = reply.headers["x-octavo-warnings"]
    assert "is image data, which the model cannot read and is told of" in told
    assert "is a PDF, which the model cannot read and is told of" in told


def test_the_model_reads_that_something_was_there() -> None:
    notes = Notes()
    tool, user = chat_messages("m", "user", BLOCKS[-1]["content"], notes, ())
    assert tool["content"] == f"{UNSEEN}\n{UNREAD}"
    assert user["content"] == [{"type": "text", "text": UNREAD}]
    assert [note.path for note in notes] == ["m.content", "m.content", "m"]
    assert input_messages(ITEMS, None, Notes(), (), ())[-1]["content"] == f"{UNSEEN}\n{UNREAD}"
    (made,) = plain_messages([RESULT], Notes(), ())
    assert [part["text"] for part in made["content"]] == [UNSEEN, UNREAD]


def test_what_the_model_takes_is_shown_to_it() -> None:
    tool, user = chat_messages("m", "user", [{**GAVE, "content": [IMAGE]}], Notes(), ("image",))
    assert tool["content"] == "(an image, which follows)"
    assert user["content"][-1]["image_url"]["url"] == URL
    (made,) = plain_messages([RESULT], Notes(), ("image",))
    assert made["content"][0] == RESULT["content"][0]


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/v1/messages", IMAGE),
        ("/v1/messages", DOCUMENT),
        ("/v1/responses", {"type": "input_image", "image_url": URL}),
        ("/v1/chat/completions", {"type": "image_url", "image_url": {"url": URL}}),
    ],
)
def test_what_a_user_shows_is_refused(http: httpx.Client, path: str, shown) -> None:
    key = "input" if path == "/v1/responses" else "messages"
    reply = http.post(path, json={**BODIES[path], key: [{"role": "user", "content": [shown]}]})
    assert reply.status_code == 400, reply.text


def test_what_an_operator_lets_nobody_bring_is_told_to_the_model_too() -> None:
    engine = AsyncLLM(
        "octavo/tiny-omni", engine_process=False, dtype="float32", num_threads=1,
        language_model_only=True,
    )  # fmt: skip
    add_built_in_routes(engine.host.routes)

    async def ask() -> str:
        (client,) = clients(engine)
        async with client:
            answer = await client.chat.completions.with_raw_response.create(
                model="octavo/tiny", messages=CHAT, max_tokens=2
            )
        return str(answer.headers["x-octavo-warnings"])

    try:
        assert "is image data" in asyncio.run(ask())
    finally:
        engine.close()
