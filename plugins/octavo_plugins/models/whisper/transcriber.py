"""How Whisper is asked for a transcript, and what its answer says of times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final

from octavo.errors import ModelError, ParameterError
from octavo_plugins.models.whisper.inputs import RATE, max_samples
from octavo_registry.modalities import MediaSettings
from octavo_registry.transcription import Passage, TranscriptionTask

SECONDS_PER_TIME: Final = 0.02
"""Between the times that neighbouring tokens stand for."""
MAX_TOKEN_CHARS: Final = 64
"""No more of a long text is read than its last tokens are likely to have."""


class WhisperTranscriber:
    """Transcribes by the token ids of generation_config.json."""

    rate = RATE

    def __init__(self, settings: MediaSettings, generation_config: Mapping[str, Any]) -> None:
        self._settings = settings
        given = {**generation_config, **settings.config}
        if "no_timestamps_token_id" not in given:
            raise ModelError(
                "transcripts need no_timestamps_token_id in generation_config.json (which "
                'generation_config="none" leaves out)'
            )
        self._start: int = given["decoder_start_token_id"]
        self._end: int = given["eos_token_id"]
        self._no_times: int = given["no_timestamps_token_id"]
        self._before: int | None = given.get("prev_sot_token_id")
        self._max_context = settings.config["max_target_positions"] // 2 - 1
        languages = given.get("lang_to_id") or {}
        self._languages: dict[str, int] = {k.strip("<|>"): v for k, v in languages.items()}
        self._tasks: Mapping[str, int] = given.get("task_to_id") or {}
        self.max_seconds: float = max_samples(settings) / RATE

    def code_of(self, language: str) -> str:
        """See ``Transcriber``, as for all methods here."""
        wanted = language.strip().lower()
        by_name = {name: code for code, name in self._names.items()}
        code = by_name.get(wanted, wanted)
        known = self._languages or {"en": 0}
        if code not in known:
            raise ParameterError(
                f"language={language[:32]!r} is none that this model knows: "
                f"{', '.join(sorted(known))}",
                param="language",
            )
        return code

    def name_of(self, code: str) -> str:
        """As Whisper calls it."""
        return self._names.get(code, code)

    def detection_prompt(self) -> Sequence[int] | None:
        """The start alone; a model of English has nothing to find."""
        return [self._start] if self._languages else None

    def detected(self, token_id: int) -> str:
        """Detect it by the language's own token, which the model's rules demand."""
        return next(code for code, token in self._languages.items() if token == token_id)

    def prompt(self, task: TranscriptionTask) -> Sequence[int]:
        """The context, and the head that says language, task and whether there are times."""
        ids = [*self._context(task), self._start]
        if self._languages:
            name = "translate" if task.translates else "transcribe"
            ids += [self._languages[task.language or "en"], self._tasks[name]]
        elif task.translates:
            raise ParameterError("this model knows English only, and translates nothing")
        return ids if task.has_times else [*ids, self._no_times]

    def silence_prompt(self, task: TranscriptionTask) -> Sequence[int] | None:
        """The token for silence stands before that for no times, and may follow the start."""
        return [*self._context(task), self._start, self._no_times - 1]

    def passages(self, token_ids: Sequence[int], seconds: float) -> Sequence[Passage]:
        """What stands between times; what comes after the last one goes on to the end."""
        found, text, start = [], list[int](), 0.0
        for token in token_ids:
            if token < self._end:
                text.append(token)
            if token <= self._no_times:
                continue
            time = min((token - self._no_times - 1) * SECONDS_PER_TIME, seconds)
            if text:
                found.append(Passage(start_seconds=start, end_seconds=time, token_ids=text))
                text = []
            start = time
        if text:
            found.append(Passage(start_seconds=start, end_seconds=seconds, token_ids=text))
        return found

    def _context(self, task: TranscriptionTask) -> list[int]:
        """The end of the text that might stand before, as much as the model was trained on."""
        text = task.context.strip()[-MAX_TOKEN_CHARS * self._max_context :]
        if not text:
            return []
        before = self._before
        if before is None:
            before = self._settings.token_id("<|startofprev|>")
        return [before, *self._settings.text_ids(" " + text)[-self._max_context :]]

    @cached_property
    def _names(self) -> Mapping[str, str]:
        from transformers.models.whisper.tokenization_whisper import LANGUAGES

        names: Mapping[str, str] = LANGUAGES
        return names
