"""Sounds of requests: decoded, cut into pieces, and asked about piece by piece."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from octavo.inputs.marked import encode_plain
from octavo.inputs.media import read_settings
from octavo.inputs.processor_kwargs import asked_of_all, read_kwargs, with_kwargs
from octavo.multimodal.errors import BadMediaError
from octavo.multimodal.given import GivenMedia
from octavo.multimodal.pieces import cut_where_quiet
from octavo.multimodal.reader import MediaReader
from octavo.outputs import RequestOutput
from octavo.params import SamplingParams
from octavo.server.apis.transcriptions.body import Segment, compression_ratio
from octavo.server.context import ServerContext
from octavo.server.protocol.merging import final_output, final_outputs
from octavo_registry.lazy import load_target
from octavo_registry.modalities import AudioClip
from octavo_registry.transcription import Transcriber, TranscriptionTask


@dataclass(frozen=True, slots=True, kw_only=True)
class Speech:
    """A request's sound in pieces that the model can hear, and what is to be made of them."""

    pieces: list[NDArray[np.float32]]
    rate: int
    task: TranscriptionTask
    prompt: Sequence[int] = ()
    """That of the task, for each piece."""

    @property
    def seconds(self) -> float:
        """The length of all pieces."""
        return sum(map(len, self.pieces)) / self.rate


class Listener:
    """Asks the model about sounds, in the terms of its plugin's transcriber."""

    def __init__(self, server: ServerContext) -> None:
        self._server = server

    async def read(self, file: bytes, language: str | None, task: TranscriptionTask) -> Speech:
        """Decode a file, cut it, and find out what is spoken if no language is named."""
        transcriber = self.transcriber
        if language is not None:
            task = replace(task, language=transcriber.code_of(language))
        given = GivenMedia(modality="audio", data=file, place="file")
        try:
            (item,) = await self._reader.read([given], {"audio": {"rate": transcriber.rate}})
        except BadMediaError as error:
            raise type(error)(str(error), param="file") from error
        clip: AudioClip = item.value
        pieces = await asyncio.to_thread(
            cut_where_quiet, clip.samples, clip.rate, transcriber.max_seconds
        )
        speech = Speech(pieces=pieces, rate=clip.rate, task=task)
        asked = transcriber.detection_prompt()
        if language is None and asked is not None:
            params = SamplingParams(temperature=0, max_tokens=1, detokenize=False)
            output = await final_output(self.ask(speech, 0, params, prompt=asked))
            found = transcriber.detected(output.outputs[0].token_ids[0])
            task = replace(task, language=found)
        # Texts that come with a task may be long, and the event loop is everybody's.
        ids = await asyncio.to_thread(transcriber.prompt, task)
        return replace(speech, task=task, prompt=ids)

    def ask(
        self,
        speech: Speech,
        number: int,
        params: SamplingParams,
        *,
        prompt: Sequence[int] | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """What the model says of a piece behind this prompt; None: behind that of the task."""
        ids = list(speech.prompt if prompt is None else prompt)
        piece = speech.pieces[number], speech.rate
        return self._server.engine.generate(
            {"prompt_token_ids": ids, "multi_modal_data": {"audio": piece}}, params
        )

    async def segments(self, speech: Speech, params: SamplingParams) -> list[Segment]:
        """Segments of all pieces, with Whisper's measures of how far to trust them."""
        params = replace(params, logprobs=0)
        count = len(speech.pieces)
        asked = [self.ask(speech, number, params) for number in range(count)]
        silence = await asyncio.to_thread(self.transcriber.silence_prompt, speech.task)
        if silence is not None:
            probe = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0, detokenize=False)
            asked += [self.ask(speech, number, probe, prompt=silence) for number in range(count)]
        outputs = await final_outputs(asked)
        quiet = [_last_probability(output) for output in outputs[count:]] or [0.0] * count
        return await asyncio.to_thread(
            self._segments, speech, outputs[:count], quiet, params.temperature
        )

    def _segments(
        self,
        speech: Speech,
        outputs: list[RequestOutput],
        quiet: list[float],
        temperature: float,
    ) -> list[Segment]:
        tokenizer = self._server.engine.get_tokenizer()
        segments: list[Segment] = []
        begin = 0.0
        for piece, output, no_speech_prob in zip(speech.pieces, outputs, quiet, strict=True):
            answer, seconds = output.outputs[0], len(piece) / speech.rate
            passages = self.transcriber.passages(answer.token_ids, seconds)
            texts = [
                tokenizer.decode(list(each.token_ids), skip_special_tokens=True)
                for each in passages
            ]
            # As Whisper counts: its end is a token that was sampled, and one of none that was said.
            num_said = len(answer.token_ids) - (answer.finish_reason == "stop")
            total = sum(
                entry[token].logprob
                for token, entry in zip(answer.token_ids, answer.logprobs or [], strict=True)
            )
            ratio = compression_ratio("".join(texts).strip())
            for each, text in zip(passages, texts, strict=True):
                segments.append(
                    Segment(
                        id=len(segments),
                        seek=round(begin * 100),
                        start=round(begin + each.start_seconds, 3),
                        end=round(begin + each.end_seconds, 3),
                        text=text,
                        tokens=list(each.token_ids),
                        temperature=temperature,
                        avg_logprob=total / (num_said + 1),
                        compression_ratio=ratio,
                        no_speech_prob=no_speech_prob,
                    )
                )
            begin += seconds
        return segments

    @cached_property
    def transcriber(self) -> Transcriber:
        """The model's; made when the first request comes, for it may load libraries."""
        engine, host = self._server.engine, self._server.host
        folder = engine.model_folder
        known = host.multimodal.kwargs(folder.architecture, folder.config)
        asked = read_kwargs(asked_of_all(engine.config.media), known)
        settings = replace(
            with_kwargs(read_settings(folder.path, folder.config), asked),
            encode_text=partial(encode_plain, engine.tokenizer),
        )
        plugin = host.models.info(folder.implementation).plugin
        with host.faults.guard(plugin, f"making the transcriber of {folder.architecture}"):
            make = load_target(str(folder.capabilities.transcriber))
            made: Transcriber = make(settings, folder.generation_config)
        return made

    @cached_property
    def _reader(self) -> MediaReader:
        """Made when the first file comes: it has threads."""
        return MediaReader(self._server.host, self._server.engine.config.media)


def _last_probability(output: RequestOutput) -> float:
    """The probability of the prompt's last token."""
    entry = (output.prompt_logprobs or [None])[-1] or {}
    return math.exp(entry[output.prompt_token_ids[-1]].logprob)
