"""The bodies of /v1/audio/transcriptions and /v1/audio/translations, both ways."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any, Final, Literal

import msgspec

from octavo.server.protocol.fields import FieldTable, Noted, Refused

_NO = ("false", "False", "0")
_SHARED: Final = {
    "vllm_xargs": Refused("only text routes take it"),
    "use_beam_search": Refused("set temperature and seed", _NO),
    "length_penalty": Refused("it belongs to beam search", ("1", "1.0")),
    "n": Refused("ask several times", ("1",)),
    "stream_continuous_usage_stats": Refused("the last event has the usage", _NO),
}
_NOTED: Final[dict[str, Noted]] = {
    "user": Noted(str),
    "stream_include_usage": Noted(bool, ("true", "True", "1")),
}
"""The last event of a stream has the usage in any case."""
TRANSCRIPTION_FIELDS: Final = FieldTable(
    noted={
        **_NOTED,
        "chunking_strategy": Noted(str | dict[str, Any], ("auto",)),  # as it is in any case
    },
    refused={
        **_SHARED,
        "include": Refused("response_format=verbose_json has the mean of the log probabilities"),
        "keywords": Refused("put them into the prompt"),
        "hotwords": Refused("put them into the prompt"),
        "languages": Refused("name one language, or none"),
        "known_speaker_names": Refused("speakers are not told apart"),
        "known_speaker_references": Refused("speakers are not told apart"),
        "to_language": Refused("/v1/audio/translations translates into English"),
    },
)
"""Fields of a transcription besides those of ``TranscriptionRequest``."""
TRANSLATION_FIELDS: Final = FieldTable(
    noted={
        **_NOTED,
        "to_language": Noted(Literal["en", "english", "English"], ("en", "english", "English")),
    },
    refused={
        **_SHARED,
        "timestamp_granularities": Refused("response_format=verbose_json has the segments"),
        "hotwords": Refused("put them into the prompt"),
    },
)
"""Fields of a translation besides those of ``TranslationRequest``."""


class SpeechRequest(msgspec.Struct, kw_only=True):
    """A file with speech, and what is to be made of it."""

    file: bytes
    model: str = ""
    language: str | None = None
    prompt: str = ""
    response_format: Literal["json", "text", "srt", "verbose_json", "vtt"] = "json"
    stream: bool = False
    temperature: float = 0.0
    top_p: float | msgspec.UnsetType = msgspec.UNSET
    top_k: int | msgspec.UnsetType = msgspec.UNSET
    min_p: float | msgspec.UnsetType = msgspec.UNSET
    seed: int | msgspec.UnsetType = msgspec.UNSET
    presence_penalty: float | msgspec.UnsetType = msgspec.UNSET
    frequency_penalty: float | msgspec.UnsetType = msgspec.UNSET
    repetition_penalty: float | msgspec.UnsetType = msgspec.UNSET
    max_completion_tokens: int | None = None
    """Most tokens for each piece of a long file."""


class TranscriptionRequest(SpeechRequest, kw_only=True):
    """Speech to be written down as it is spoken."""

    timestamp_granularities: list[Literal["segment", "word"]] = msgspec.field(default_factory=list)


class TranslationRequest(SpeechRequest, kw_only=True):
    """Speech to be written down in English."""


class Duration(msgspec.Struct, kw_only=True):
    """What was used: seconds of sound."""

    type: str = "duration"
    seconds: float


class TokenUsage(msgspec.Struct, kw_only=True):
    """The usage of a transcription in tokens."""

    type: str = "tokens"
    input_tokens: int
    output_tokens: int
    total_tokens: int


class Segment(msgspec.Struct, kw_only=True):
    """A part of a transcript; the last four numbers are those of the piece that it is in."""

    id: int
    seek: int
    """Where the piece begins, in hundredths of a second."""
    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float


class Transcript(msgspec.Struct, kw_only=True):
    """The answer; all but text and usage of verbose_json."""

    text: str
    task: str | msgspec.UnsetType = msgspec.UNSET
    language: str | msgspec.UnsetType = msgspec.UNSET
    duration: float | msgspec.UnsetType = msgspec.UNSET
    segments: list[Segment] | msgspec.UnsetType = msgspec.UNSET
    usage: Duration
    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET


def compression_ratio(text: str) -> float:
    """How many times shorter zlib makes it: what repeats itself is above 2.4."""
    data = text.encode()
    return len(data) / len(zlib.compress(data))


def subtitles(segments: Iterable[Segment], kind: Literal["srt", "vtt"]) -> str:
    """The segments as a file of subtitles."""
    point = "," if kind == "srt" else "."
    blocks = []
    for number, each in enumerate(segments, start=1):
        times = f"{_clock(each.start, point)} --> {_clock(each.end, point)}"
        text = each.text.strip().replace("-->", "->")
        blocks.append(f"{number}\n{times}\n{text}\n" if kind == "srt" else f"{times}\n{text}\n")
    return "\n".join(blocks if kind == "srt" else ["WEBVTT\n", *blocks])


def _clock(seconds: float, point: str) -> str:
    milliseconds = round(seconds * 1000)
    minutes, rest = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{rest // 1000:02}{point}{rest % 1000:03}"
