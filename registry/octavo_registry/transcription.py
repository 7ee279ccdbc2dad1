"""Speech to text: what the transcription routes ask of a model's plugin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptionTask:
    """What is to be made of a piece of sound."""

    language: str | None = None
    """What is spoken, as a code of ``Transcriber.code_of``; None: not known."""
    translates: bool = False
    """Into English."""
    context: str = ""
    """Text that might stand before it: names and their spelling, or what was said."""
    has_times: bool = False
    """Whether ``Transcriber.passages`` shall find times in the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A part of an answer, with its place in the piece of sound."""

    start_seconds: float
    end_seconds: float
    token_ids: Sequence[int]
    """Ids of the text alone."""


@runtime_checkable
class Transcriber(Protocol):
    """Writes a model's prompts for pieces of sound, and reads its answers.

    Made once a server, as ``Target(settings, generation_config)`` with ``MediaSettings`` and
    generation_config.json; each prompt is sent with the piece as its one item of audio.
    """

    rate: int
    """Samples per second of the pieces."""
    max_seconds: float
    """Length of a piece."""

    def code_of(self, language: str) -> str:
        """Return the code ("en") of a language's code or name; raises for one that is unknown."""
        ...

    def name_of(self, code: str) -> str:
        """Return a language's English name, in small letters."""
        ...

    def detection_prompt(self) -> Sequence[int] | None:
        """The prompt after which the model says the language; None: it need not be asked."""
        ...

    def detected(self, token_id: int) -> str:
        """Return the code for the token that the model sampled then."""
        ...

    def prompt(self, task: TranscriptionTask) -> Sequence[int]:
        """The prompt after which the model writes; raises for a task that it cannot do."""
        ...

    def silence_prompt(self, task: TranscriptionTask) -> Sequence[int] | None:
        """A prompt whose last token is as likely as nothing being said; None: none is."""
        ...

    def passages(self, token_ids: Sequence[int], seconds: float) -> Sequence[Passage]:
        """Take an answer with times apart, for a piece of so many seconds."""
        ...
