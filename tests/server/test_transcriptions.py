"""Speech over HTTP: the real openai package, a Whisper with random weights, and bad files."""

from __future__ import annotations

import io
import json
import re
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import soundfile
import torch

from live_server import FLAGS, LiveServer, running_server
from octavo import LLM, SamplingParams
from octavo.multimodal.pieces import cut_where_quiet
from octavo_plugins.models.whisper.transcriber import WhisperTranscriber
from octavo_registry.modalities import MediaSettings
from octavo_registry.transcription import TranscriptionTask
from tiny_whisper import (
    BEFORE,
    DUTCH,
    ENGLISH,
    GERMAN,
    NO_SPEECH,
    NO_TIMES,
    RATE,
    SECONDS,
    START,
    TRANSCRIBE,
    TRANSLATE,
    features,
    make_tiny_whisper,
    sound,
)

LONG = 3.3 * SECONDS
MOST_SECONDS = 5


def wav(number: int, seconds: float = SECONDS) -> bytes:
    file = io.BytesIO()
    samples, rate = sound(number, seconds)
    soundfile.write(file, samples, rate, format="WAV", subtype="FLOAT")
    return file.getvalue()


def pieces(number: int, seconds: float) -> list[Any]:
    return cut_where_quiet(sound(number, seconds)[0], RATE, SECONDS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whisper")
    make_tiny_whisper(path)
    return path


@pytest.fixture(scope="module")
def live(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    log = tmp_path_factory.mktemp("server") / "log"
    flags = (
        *("--served-model-name", "ears", "--kv-cache-memory-gib", "0.1"),
        *("--max-audio-seconds", str(MOST_SECONDS), "--max-body-mib", "1"),
    )
    with running_server(log, *flags, base=(str(folder), *FLAGS)) as server:
        yield server


@pytest.fixture(scope="module")
def client(live: LiveServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(str(folder), dtype="float32", num_threads=1, kv_cache_memory_gib=0.05) as made:
        yield made


def answers(llm: LLM, head: list[int], number: int, seconds: float, **more: Any) -> list[Any]:
    """What the model says offline of each piece of a sound."""
    params = SamplingParams(temperature=0, max_tokens=None, **more)
    prompts = [
        {"prompt_token_ids": head, "multi_modal_data": {"audio": (piece, RATE)}}
        for piece in pieces(number, seconds)
    ]
    return [each.outputs[0] for each in llm.generate(prompts, params, use_tqdm=False)]


def text_of(llm: LLM, head: list[int], number: int, seconds: float) -> str:
    return "".join(each.text for each in answers(llm, head, number, seconds)).strip()


def ask(client: openai.OpenAI, number: int, seconds: float = SECONDS, **fields: Any) -> Any:
    return client.audio.transcriptions.create(
        file=("speech.wav", wav(number, seconds)), **{"model": "ears", **fields}
    )


def plain(language: int, task: int = TRANSCRIBE) -> list[int]:
    return [START, language, task, NO_TIMES]


@pytest.mark.slow
def test_transcripts_are_what_they_are_offline_whole_streamed_and_in_pieces(client, llm) -> None:
    for number, seconds in ((0, SECONDS / 2), (1, SECONDS), (2, LONG)):
        expected = text_of(llm, plain(GERMAN), number, seconds)
        reply = ask(client, number, seconds, language="de")
        assert reply.text == expected
        assert reply.usage.type == "duration"
        assert ask(client, number, seconds, language="German", response_format="text") == (
            expected + "\n"
        )
        *deltas, done = ask(client, number, seconds, language="de", stream=True)
        assert {each.type for each in deltas} == {"transcript.text.delta"}
        assert "".join(each.delta for each in deltas).rstrip() == expected
        assert (done.type, done.text) == ("transcript.text.done", expected)
        assert done.usage.input_tokens == 4 * len(pieces(number, seconds))
    assert len(pieces(2, LONG)) > 3


@pytest.mark.slow
def test_the_language_is_found_when_none_is_named(client, llm) -> None:
    found, texts = set(), set()
    for number, seconds in ((0, SECONDS), (1, SECONDS), (2, LONG)):
        language = answers(llm, [START], number, seconds)[0].token_ids[0]
        expected = text_of(llm, plain(language), number, seconds)
        assert ask(client, number, seconds).text == expected
        found.add(language)
        texts |= {expected, text_of(llm, plain(ENGLISH), number, seconds)}
    assert len(found) > 1
    assert len(texts) > 3


@pytest.mark.slow
def test_a_translation_and_a_prompt_are_other_questions(client, llm) -> None:
    reply = client.audio.translations.create(
        model="ears", file=wav(1, LONG), extra_body={"language": "nl"}
    )
    assert reply.text == text_of(llm, plain(DUTCH, TRANSLATE), 1, LONG)
    assert reply.text != text_of(llm, plain(DUTCH), 1, LONG)
    words = llm.get_tokenizer().encode(" The captain", add_special_tokens=False)
    head = [BEFORE, *words, *plain(ENGLISH)]
    reply = ask(client, 1, LONG, language="en", prompt="The captain ")
    assert reply.text == text_of(llm, head, 1, LONG)
    assert reply.text != text_of(llm, plain(ENGLISH), 1, LONG)


@torch.no_grad()
@pytest.mark.slow
def test_segments_have_times_and_whispers_measures(client, llm, folder, tmp_path) -> None:
    reply = ask(
        client,
        3,
        LONG,
        language="de",
        response_format="verbose_json",
        timestamp_granularities=["segment"],
    )
    head = [START, GERMAN, TRANSCRIBE]
    model = make_tiny_whisper(tmp_path)
    begin, segments = 0.0, list(reply.segments)
    assert [each.id for each in segments] == list(range(len(segments)))
    for piece, answer in zip(pieces(3, LONG), answers(llm, head, 3, LONG, logprobs=0), strict=True):
        seconds = len(piece) / RATE
        here = [each for each in segments if each.seek == round(begin * 100)]
        said = [token for token in answer.token_ids if token < START - 1]
        assert [token for each in here for token in each.tokens] == said
        logprobs = [
            entry[token].logprob
            for token, entry in zip(answer.token_ids, answer.logprobs, strict=True)
        ]
        count = len(logprobs) - (answer.finish_reason == "stop")
        text = "".join(each.text for each in here).strip().encode()
        encoded = model.model.encoder(features([(piece, RATE)]))
        logits = model(encoder_outputs=encoded, decoder_input_ids=torch.tensor([[START]])).logits
        silence = float(logits[0, 0].softmax(-1)[NO_SPEECH])
        for each in here:
            assert begin - 1e-3 <= each.start <= each.end <= begin + seconds + 1e-3
            assert each.avg_logprob == pytest.approx(sum(logprobs) / (count + 1), abs=1e-4)
            assert each.compression_ratio == pytest.approx(len(text) / len(zlib.compress(text)))
            assert each.no_speech_prob == pytest.approx(silence, abs=1e-5)
            assert each.temperature == 0
        begin += seconds
    assert reply.text == "".join(each.text for each in segments).strip()
    assert reply.language == "german"
    assert reply.duration == pytest.approx(LONG, abs=1e-3)
    assert len(segments) > 3


@pytest.mark.slow
def test_subtitles_have_the_segments(client) -> None:
    segments = ask(client, 3, LONG, language="de", response_format="verbose_json").segments
    srt = ask(client, 3, LONG, language="de", response_format="srt")
    vtt = ask(client, 3, LONG, language="de", response_format="vtt")
    times = re.findall(r"(\d\d):(\d\d):(\d\d),(\d\d\d) --> \d", srt)
    starts = [int(h) * 3600 + int(m) * 60 + int(s) + int(ms) / 1000 for h, m, s, ms in times]
    assert starts == pytest.approx([each.start for each in segments], abs=1e-3)
    assert vtt.startswith("WEBVTT\n\n00:00:00.")
    assert vtt.count(" --> ") == srt.count(" --> ") == len(segments)


@pytest.mark.slow
def test_many_at_once_are_what_each_is_alone(client, llm) -> None:
    expected = [text_of(llm, plain(GERMAN), number, SECONDS) for number in range(4)]
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda i: ask(client, i % 4, language="de").text, range(16)))
    assert found == expected * 4
    drawn = [
        ask(client, 1, language="de", temperature=1, extra_body={"seed": seed}).text
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]


BAD: dict[str, tuple[dict[str, Any], int, str]] = {
    "no file": ({"file": None}, 400, "file must be a file"),
    "an empty file": ({"file": b""}, 400, "file must be a file"),
    "no sound": ({"file": b"<svg>" * 100}, 400, "file"),
    "a cut file": ({"file": wav(0)[:30]}, 400, "file"),
    "a long one": ({"file": wav(0, MOST_SECONDS + 1)}, 413, "at most 5.0"),
    "a large one": ({"file": bytes(2**20 + 1)}, 413, "1 MiB"),
    "words": (
        {"response_format": "verbose_json", "timestamp_granularities[]": "word"},
        400,
        "word is not available",
    ),
    "times of json": ({"timestamp_granularities[]": "segment"}, 400, "needs response_format"),
    "a stream of subtitles": ({"stream": "true", "response_format": "srt"}, 400, "has no stream"),
    "no language": ({"language": "Klingon"}, 400, "none that this model knows: de, en"),
    "no format": ({"response_format": "diarized_json"}, 400, "response_format"),
    "no number": ({"temperature": "warm"}, 400, "temperature"),
    "a number out of range": ({"temperature": "-1"}, 400, "temperature"),
    "too many tokens": ({"max_completion_tokens": "65"}, 400, "between 1 and the context of 64"),
    "a field of nobody": ({"temprature": "1"}, 400, "temperature"),
    "log probabilities": ({"include[]": "logprobs"}, 400, "include"),
    "speakers": ({"known_speaker_names[]": "Ada"}, 400, "not told apart"),
    "another model": ({"model": "eyes"}, 404, "does not exist"),
    "a long context": ({"prompt": "x" * 10_000}, 400, ""),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_is_refused_by_name(live, name) -> None:
    fields, status, problem = BAD[name]
    given = {"model": "ears", **fields}
    file = given.pop("file", wav(0))
    # Without a file it is a form only by a part that httpx takes for one.
    files = {"x": (None, "1")} if file is None else {"file": ("speech.wav", file)}
    with live.client() as http:
        reply = http.post("/v1/audio/transcriptions", data=given, files=files)
    if name == "a long context":
        assert reply.status_code == 200, "its end is taken"
        return
    assert reply.status_code == status, reply.text
    error = reply.json()["error"]
    assert problem in error["message"]
    assert error["param"] == "file" or not problem.startswith("file")


def test_of_a_long_prompt_no_more_is_read_than_counts(folder) -> None:
    lengths: list[int] = []

    def encode(text: str) -> list[int]:
        lengths.append(len(text))
        return [5] * len(text)

    config = json.loads((folder / "config.json").read_text())
    settings = MediaSettings(config=config, processors={}, encode_text=encode)
    given = json.loads((folder / "generation_config.json").read_text())
    made = WhisperTranscriber(settings, given)
    most = config["max_target_positions"] // 2 - 1
    task = TranscriptionTask(language="en", context="x" * 10**6)
    assert made.prompt(task) == [BEFORE, *[5] * most, START, ENGLISH, TRANSCRIBE, NO_TIMES]
    assert max(lengths) < 100 * most


@pytest.mark.slow
def test_bodies_that_are_no_form_are_refused(live) -> None:
    path = "/v1/audio/transcriptions"
    with live.client() as http:
        assert http.post(path, json={"model": "ears"}).status_code == 415
        kind = {"content-type": "multipart/form-data; boundary=b"}
        for body in (b"", b"--b", b"--b\r\n\r\nx\r\n--b--", b"nothing\r\n--c--"):
            reply = http.post(path, content=body, headers=kind)
            assert reply.status_code == 400, body
            assert json.loads(reply.text)["error"]["type"] == "invalid_request_error"
        described = http.get("/openapi.json").json()["paths"][path]["post"]
        assert list(described["requestBody"]["content"]) == ["multipart/form-data"]
        assert http.get("/docs").status_code == 200


@pytest.mark.slow
def test_prompts_of_text_bring_their_head_themselves(llm) -> None:
    prompt = {
        "prompt": "<|startoftranscript|><|en|><|transcribe|><|notimestamps|>",
        "multi_modal_data": {"audio": sound(1)},
    }
    (output,) = llm.generate(prompt, SamplingParams(temperature=0, max_tokens=8), use_tqdm=False)
    assert output.prompt_token_ids == plain(ENGLISH)


def test_models_that_hear_nothing_have_no_such_path(http: httpx.Client) -> None:
    reply = http.post("/v1/audio/transcriptions", files={"file": ("speech.wav", wav(0))})
    assert reply.status_code == 404
