"""/v1/audio/transcriptions and /v1/audio/translations, where the model writes down speech."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Final

import msgspec

from octavo.params import SamplingParams
from octavo.server.apis.transcriptions.body import (
    TRANSCRIPTION_FIELDS,
    TRANSLATION_FIELDS,
    Duration,
    SpeechRequest,
    TokenUsage,
    Transcript,
    TranscriptionRequest,
    TranslationRequest,
    subtitles,
)
from octavo.server.apis.transcriptions.speech import Listener, Speech
from octavo.server.context import ServerContext
from octavo.server.http.errors import HttpError
from octavo.server.http.exchange import EventStream, Exchange, Reply, encode, event
from octavo.server.http.form import read_form
from octavo.server.http.openapi import operation
from octavo.server.protocol.fields import FieldTable
from octavo.server.protocol.merging import final_outputs
from octavo.server.protocol.notes import told
from octavo.server.protocol.sampling import checked_max_tokens
from octavo_registry.routes import Endpoint
from octavo_registry.transcription import TranscriptionTask

SAMPLING: Final = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)


class TranscriptionRoutes:
    """Writes down speech, long files piece by piece."""

    def __init__(self, server: ServerContext) -> None:
        self._server = server
        self._listener = Listener(server)

    def endpoints(self) -> Sequence[Endpoint]:
        """Return both ways to ask; none for a model that has no transcriber."""
        if self._server.engine.model_folder.capabilities.transcriber is None:
            return []
        add = partial(self._server.endpoint, "POST", generates=True, read=read_form)
        about = partial(operation, reply=Transcript, streams=True, takes="multipart/form-data")
        return [
            add(
                "/v1/audio/transcriptions",
                self._transcribe,
                about("Write down speech", request=TranscriptionRequest),
            ),
            add(
                "/v1/audio/translations",
                self._translate,
                about("Write down speech in English", request=TranslationRequest),
            ),
        ]

    async def _transcribe(self, exchange: Exchange) -> Reply | EventStream:
        return await self._answer(exchange, TranscriptionRequest, TRANSCRIPTION_FIELDS)

    async def _translate(self, exchange: Exchange) -> Reply | EventStream:
        return await self._answer(exchange, TranslationRequest, TRANSLATION_FIELDS)

    async def _answer(
        self, exchange: Exchange, kind: type[SpeechRequest], table: FieldTable
    ) -> Reply | EventStream:
        file = exchange.body.get("file")
        if not isinstance(file, bytes) or not file:
            raise HttpError(400, "file must be a file, and not empty", param="file")
        request = self._server.read(exchange, kind, table, is_form=True)
        await self._server.check_model(request.model)
        _check_format(request)
        params, form = self._params(request), request.response_format
        task = TranscriptionTask(
            translates=kind is TranslationRequest,
            context=request.prompt,
            has_times=form not in ("json", "text"),
        )
        speech = await self._listener.read(file, request.language, task)
        self._server.check_sequences(len(speech.pieces), params)
        if request.stream:
            return EventStream(self._events(speech, params))
        warnings = told(exchange.notes)
        if not task.has_times:
            text = await self._text(speech, params)
            if form == "text":
                return _plain(text + "\n")
            return Reply(encode(Transcript(text=text, usage=_used(speech), warnings=warnings)))
        segments = await self._listener.segments(speech, params)
        if form == "srt" or form == "vtt":
            return _plain(subtitles(segments, form))
        written = "en" if task.translates else speech.task.language or "en"
        whole = Transcript(
            task="translate" if task.translates else "transcribe",
            language=self._listener.transcriber.name_of(written),
            duration=round(speech.seconds, 3),
            text="".join(each.text for each in segments).strip(),
            segments=segments,
            usage=_used(speech),
            warnings=warnings,
        )
        return Reply(encode(whole))

    async def _text(self, speech: Speech, params: SamplingParams) -> str:
        """The text of all pieces, which are heard at the same time."""
        streams = [
            self._listener.ask(speech, number, params) for number in range(len(speech.pieces))
        ]
        outputs = await final_outputs(streams)
        return "".join(output.outputs[0].text for output in outputs).strip()

    async def _events(self, speech: Speech, params: SamplingParams) -> AsyncIterator[bytes]:
        """News of the text, piece by piece, and at last all of it."""
        params = replace(params, output_kind="delta")
        text, num_input, num_output = "", 0, 0
        for number in range(len(speech.pieces)):
            async with aclosing(self._listener.ask(speech, number, params)) as outputs:
                async for output in outputs:
                    news = output.outputs[0]
                    num_output += len(news.token_ids)
                    delta = news.text if text else news.text.lstrip()
                    text += delta
                    if delta:
                        yield event({"type": "transcript.text.delta", "delta": delta})
                num_input += len(output.prompt_token_ids)
        usage = TokenUsage(
            input_tokens=num_input, output_tokens=num_output, total_tokens=num_input + num_output
        )
        yield event({"type": "transcript.text.done", "text": text.rstrip(), "usage": usage})

    def _params(self, request: SpeechRequest) -> SamplingParams:
        default = self._server.default_params(max_tokens=None)
        given = {name: getattr(request, name) for name in SAMPLING}
        given = {name: value for name, value in given.items() if value is not msgspec.UNSET}
        if request.max_completion_tokens is not None:
            given["max_tokens"] = checked_max_tokens(
                "max_completion_tokens",
                request.max_completion_tokens,
                self._server.engine.max_model_len,
            )
        return replace(default, output_kind="final", **given)


def _check_format(request: SpeechRequest) -> None:
    """Raise for fields that do not go together."""
    form = request.response_format
    if request.stream and form not in ("json", "text"):
        raise HttpError(
            400,
            f"response_format={form} has no stream; choose json, or stream=false",
            param="response_format",
        )
    asked = request.timestamp_granularities if isinstance(request, TranscriptionRequest) else ()
    name = "timestamp_granularities"
    if "word" in asked:
        raise HttpError(400, f"{name}=word is not available: segments have times", param=name)
    if asked and form != "verbose_json":
        raise HttpError(400, f"{name} needs response_format=verbose_json", param=name)


def _used(speech: Speech) -> Duration:
    return Duration(seconds=math.ceil(speech.seconds))


def _plain(text: str) -> Reply:
    return Reply(text.encode(), content_type=b"text/plain; charset=utf-8")
