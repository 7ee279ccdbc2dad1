"""Sounds over HTTP: the real openai package, a Qwen2-Audio with random weights, and bad sounds."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
import soundfile
import torch
from transformers import Qwen2AudioConfig, Qwen2AudioForConditionalGeneration

from live_server import FLAGS, LiveServer, running_server
from media_equality import randomize
from media_pictures import TEXT
from media_sounds import AUDIO, RATE, VOCAB, add_tokenizer, sound
from octavo import LLM, SamplingParams

SOUNDS = [sound(seconds) for seconds in (0.31, 0.5, 0.9)]


def recorded(number: int, kind: str = "WAV", rate: int = RATE) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, SOUNDS[number], rate, format=kind)
    return file.getvalue()


def heard(data: bytes, kind: str = "wav") -> dict[str, Any]:
    encoded = base64.b64encode(data).decode()
    return {"type": "input_audio", "input_audio": {"data": encoded, "format": kind}}


def asked(*parts: str | dict[str, Any]) -> list[dict[str, Any]]:
    """A user's message of texts and sounds, in order."""
    content = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    return [{"role": "user", "content": content}]


CHATS = [
    asked("What do you hear?", heard(recorded(0))),
    asked(heard(recorded(1, "FLAC"), "flac"), "and", heard(recorded(0)), "differ"),
    asked(heard(recorded(0)), "and", heard(recorded(1, "FLAC"), "flac"), "differ"),
    asked(heard(recorded(1, rate=2 * RATE))),
    asked("No sound."),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("qwen2_audio")
    config = Qwen2AudioConfig(
        audio_config=AUDIO,
        text_config={**TEXT, "vocab_size": VOCAB, "model_type": "qwen2"},
        audio_token_index=add_tokenizer(path, "<|audio_bos|>", "<|audio_eos|>", "<|AUDIO|>")[-1],
    )
    model = Qwen2AudioForConditionalGeneration(config)
    randomize(model, 0.3)
    model.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def live(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    log = tmp_path_factory.mktemp("server") / "log"
    flags = ("--served-model-name", "ears", "--kv-cache-memory-gib", "0.05")
    limits = ("--limit-mm-per-prompt", '{"audio": 2}', "--max-audio-seconds", "5")
    with running_server(log, *flags, *limits, base=(str(folder), *FLAGS)) as server:
        yield server


@pytest.mark.slow
def test_sounds_over_http_are_what_they_are_offline_streamed_and_many_at_once(live, folder) -> None:
    client = openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0)
    wanted: dict[str, Any] = {"model": "ears", "temperature": 0, "max_tokens": 10}

    def answer(messages: list[Any]) -> tuple[str | None, int]:
        reply = client.chat.completions.create(messages=messages, **wanted)
        return reply.choices[0].message.content, reply.usage.prompt_tokens

    def streamed(messages: list[Any]) -> str:
        reply = client.chat.completions.create(messages=messages, stream=True, **wanted)
        return "".join(chunk.choices[0].delta.content or "" for chunk in reply if chunk.choices)

    with LLM(str(folder), dtype="float32", num_threads=1, kv_cache_memory_gib=0.05) as llm:
        outputs = llm.chat(CHATS, SamplingParams(temperature=0, max_tokens=10), use_tqdm=False)
    expected = [(each.outputs[0].text, len(each.prompt_token_ids)) for each in outputs]
    assert len(set(expected)) == len(CHATS), "each sound, each order and each rate is told apart"
    assert [answer(chat) for chat in CHATS] == expected
    assert [streamed(chat) for chat in CHATS] == [text for text, _ in expected]
    with ThreadPoolExecutor(20) as pool:
        assert list(pool.map(answer, CHATS * 4)) == expected * 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parts", "status", "problem"),
    [
        ([heard(b"")], 400, "0 bytes"),
        ([heard(recorded(0)[:30])], 400, "content[0]"),
        ([heard(b"<svg/>" * 99)], 400, "content[0]"),
        ([heard(recorded(0), "exe")], 400, "format"),
        ([heard(recorded(0), "aac")], 400, "one of wav, mp3, flac, ogg, opus, m4a, webm"),
        ([{"type": "input_audio", "input_audio": {"data": 5, "format": "wav"}}], 400, "base64"),
        ([{"type": "input_audio", "input_audio": {"data": "%", "format": "wav"}}], 400, "base64"),
        ([{"type": "input_audio"}], 400, "input_audio"),
        ([heard(recorded(2, rate=RATE // 2))], 400, "(input_audio): a sound of 1.80 seconds"),
        ([heard(recorded(2, rate=1000))], 413, "seconds"),
        ([heard(recorded(0))] * 3, 413, "2"),
    ],
    ids=[
        "empty",
        "cut",
        "svg",
        "exe",
        "aac",
        "number",
        "no base64",
        "nothing",
        "long",
        "bomb",
        "many",
    ],
)
def test_a_bad_sound_is_refused_and_says_why(live, parts, status, problem) -> None:
    with live.client() as http:
        reply = http.post("/v1/chat/completions", json={"messages": asked(*parts), "max_tokens": 4})
        assert reply.status_code == status, reply.text
        assert problem in reply.json()["error"]["message"]
        fine = http.post("/v1/chat/completions", json={"messages": CHATS[0], "max_tokens": 4})
    assert fine.status_code == 200, fine.text
