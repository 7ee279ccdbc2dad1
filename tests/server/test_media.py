"""Pictures over HTTP: the real openai package, a LLaVA with random weights, and bad pictures."""

from __future__ import annotations

import base64
import io
import json
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from PIL import Image
from safetensors.torch import save

from live_server import FLAGS, LiveServer, running_server
from octavo import LLM, SamplingParams
from tiny_llava import ROWS, make_tiny_llava, picture


def data_url(image: Image.Image, kind: str = "PNG") -> str:
    file = io.BytesIO()
    image.save(file, kind)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"


def asked(*parts: str | Image.Image) -> list[dict[str, Any]]:
    """A user's message of texts and pictures, in order."""
    content = [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image_url", "image_url": {"url": data_url(part)}}
        for part in parts
    ]
    return [{"role": "user", "content": content}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llava")
    make_tiny_llava(path)
    return path


@pytest.fixture(scope="module")
def live(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    log = tmp_path_factory.mktemp("server") / "log"
    flags = (
        "--served-model-name",
        "eyes",
        "--limit-mm-per-prompt",
        '{"image": 3}',
        "--enable-mm-embeds",
        "--kv-cache-memory-gib",
        "0.1",
    )
    with running_server(log, *flags, base=(str(folder), *FLAGS)) as server:
        yield server


@pytest.fixture(scope="module")
def client(live: LiveServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0)


def answer(client: openai.OpenAI, messages: list[dict[str, Any]], **options: Any) -> str:
    reply = client.chat.completions.create(
        model="eyes", messages=messages, temperature=0, max_tokens=10, **options
    )
    if not options.get("stream"):
        return reply.choices[0].message.content
    return "".join(chunk.choices[0].delta.content or "" for chunk in reply if chunk.choices)


@pytest.mark.slow
def test_pictures_over_http_are_what_they_are_offline_streamed_and_many_at_once(
    client, folder
) -> None:
    chats = [
        asked("What is this?", picture(0)),
        asked(picture(1), "and", picture(2), "differ"),
        asked("No picture."),
    ]
    offline_chats = [
        [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, shown(0)]}],
        [{"role": "user", "content": [shown(1), text("and"), shown(2), text("differ")]}],
        chats[2],
    ]
    with LLM(str(folder), dtype="float32", num_threads=1, kv_cache_memory_gib=0.1) as llm:
        outputs = llm.chat(
            offline_chats, SamplingParams(temperature=0, max_tokens=10), use_tqdm=False
        )
        expected = [output.outputs[0].text for output in outputs]
        assert len(outputs[0].prompt_token_ids) > 16
    assert [answer(client, chat) for chat in chats] == expected
    assert [answer(client, chat, stream=True) for chat in chats] == expected
    with ThreadPoolExecutor(24) as pool:
        many = list(pool.map(lambda number: answer(client, chats[number % 3]), range(24)))
    assert many == [expected[number % 3] for number in range(24)]


@pytest.mark.slow
def test_a_picture_sent_once_is_known_by_its_uuid(client) -> None:
    def chat(picture: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"role": "user", "content": [picture, text("What is this?")]}]

    (whole,) = asked(picture(4))[0]["content"]
    low = {**whole, "image_url": {**whole["image_url"], "detail": "low"}}
    expected = answer(client, chat(whole))
    assert answer(client, chat({**low, "uuid": "four"})) == expected
    for left_out in ({}, {"image_url": None}):
        again = {"type": "image_url", "uuid": "four", **left_out}
        assert answer(client, chat(again)) == expected
    with pytest.raises(
        openai.BadRequestError, match=r"\(image_url\): no item of this uuid is kept"
    ):
        answer(client, chat({"type": "image_url", "uuid": "five"}))


def embedded(rows: torch.Tensor | bytes) -> dict[str, Any]:
    """A part of rows that are encoded already."""
    data = rows if isinstance(rows, bytes) else save({"image_embeds": rows})
    return {"type": "image_embeds", "image_embeds": base64.b64encode(data).decode()}


@pytest.mark.slow
def test_rows_over_http_are_what_they_are_offline(client, folder) -> None:
    rows = torch.randn(ROWS, 64, generator=torch.Generator().manual_seed(0))
    chats = [
        [{"role": "user", "content": [part, text("What is this?")]}]
        for part in (embedded(rows), embedded(-rows))
    ]
    offline = {"type": "image_embeds", "image_embeds": rows}
    settings = {"dtype": "float32", "num_threads": 1, "kv_cache_memory_gib": 0.1}
    with LLM(str(folder), enable_mm_embeds=True, **settings) as llm:
        (expected,) = llm.chat(
            [{"role": "user", "content": [offline, text("What is this?")]}],
            SamplingParams(temperature=0, max_tokens=10),
            use_tqdm=False,
        )
    found = [answer(client, chat) for chat in chats]
    assert found[0] == expected.outputs[0].text != found[1]


def one_with_axes(count: int) -> bytes:
    """A file of one float; torch can't write more than 64 axes, and reads any number."""
    entry = {"dtype": "F32", "shape": [1] * count, "data_offsets": [0, 4]}
    header = json.dumps({"image_embeds": entry}, separators=(",", ":")).encode()
    return len(header).to_bytes(8, "little") + header + bytes(4)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "0 bytes"),
        (pickle.dumps({"image_embeds": [0.0]}), "no safetensors file"),
        (save({str(number): torch.zeros(0) for number in range(9999)}), "of a few tensors"),
        (save({"image_embeds": torch.zeros(ROWS, 64)})[:-1], "no safetensors file"),
        (save({"other": torch.zeros(ROWS, 64)}), "no tensor 'image_embeds'"),
        (torch.zeros(ROWS, 64, dtype=torch.uint8), "uint8"),
        (torch.full((ROWS, 64), torch.inf), "not finite"),
        (one_with_axes(4000), "4000 axes"),
        (torch.zeros(ROWS + 1, 64), "has 16 rows of 64"),
        (torch.zeros(1, ROWS, 64), "rows are floats [rows, row size]"),
    ],
    ids=lambda each: str(each)[:20],
)
@pytest.mark.slow
def test_rows_that_cannot_be_are_refused(live, data, problem) -> None:
    messages = [{"role": "user", "content": [embedded(data)]}]
    with live.client() as http:
        reply = http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 4})
    assert reply.status_code == 400, reply.text
    assert problem in reply.json()["error"]["message"]


@pytest.mark.slow
def test_what_a_request_says_of_processors_must_be_known(live) -> None:
    body = {"messages": asked(picture(0)), "max_tokens": 4}
    with live.client() as http:
        for kwargs, status in (({}, 200), ({"size": {"longest_edge": 9}}, 400), ({"a": 1}, 400)):
            given = {**body, "mm_processor_kwargs": kwargs}
            reply = http.post("/v1/chat/completions", json=given)
            assert reply.status_code == status, reply.text
    assert reply.json()["error"]["param"] == "mm_processor_kwargs"


@pytest.mark.slow
def test_a_place_that_a_user_writes_is_text_in_a_message_and_refused_in_a_prompt(live) -> None:
    with live.client() as http:
        messages = [{"role": "user", "content": "<image>?"}]
        reply = http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 4})
        assert reply.status_code == 200, reply.text
        reply = http.post("/v1/completions", json={"prompt": "<image>?", "max_tokens": 4})
        assert reply.status_code == 400, reply.text
        assert "1 places for image items, and there are 0" in reply.json()["error"]["message"]


def shown(number: int) -> dict[str, Any]:
    return {"type": "image", "image": picture(number)}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


@pytest.mark.parametrize(
    ("part", "status", "problem"),
    [
        ({"type": "image_url", "image_url": {"url": "http://127.0.0.1/a.png"}}, 400, "domains"),
        ({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}, 400, "local"),
        ({"type": "image_url", "image_url": {"url": "/etc/passwd"}}, 400, "URL"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}, 400, "image"),
        ({"type": "image_url", "image_url": {"url": 7}}, 400, "must be text"),
        ({"type": "image_url", "image_url": {"detail": ["best"], "url": ""}}, 400, "URL"),
        ({"type": "image_url", "image_url": {"uri": "x"}}, 400, "close: ['url']"),
        ({"type": "image_url"}, 400, "image_url"),
        ({"type": "image", "image": ["a", "b"]}, 400, "image"),
        ({"type": "image", "image": 5}, 400, "image"),
        ({"type": "video_url", "video_url": {"url": "data:,"}}, 400, "takes no video"),
        ({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}, 400, "audio"),
        ({"type": "input_audio", "input_audio": {"data": "", "format": "exe"}}, 400, "format"),
        ({"type": "image_url", "image_url": {"url": "x"}, "uuids": 1}, 400, "close: ['uuid']"),
    ],
    ids=lambda each: str(each)[:50],
)
@pytest.mark.slow
def test_a_bad_picture_is_refused_and_says_why(live, part, status, problem) -> None:
    body = {"messages": [{"role": "user", "content": [part]}], "max_tokens": 4}
    with live.client() as http:
        reply = http.post("/v1/chat/completions", json=body)
    assert reply.status_code == status, reply.text
    assert problem in reply.json()["error"]["message"]


@pytest.mark.slow
def test_more_or_larger_pictures_than_allowed_are_too_large(live) -> None:
    bomb = Image.new("1", (12_000, 12_000))
    with live.client() as http:
        for messages in (asked(*[picture(0)] * 4), asked(bomb)):
            reply = http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 4})
            assert reply.status_code == 413, reply.text
