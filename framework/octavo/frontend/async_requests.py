"""One request of an event loop: made where that holds up nobody, and under way."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from typing import Final, NamedTuple, TypeVar

from octavo.errors import error_class
from octavo.frontend.frontend import Frontend
from octavo.frontend.streaming import OutputStream
from octavo.frontend.thread import EngineThread
from octavo.inputs import Conversation, PreparedRequest, Prompt, RequestOptions
from octavo.inputs.media_parts import has_media
from octavo.observability.tracing import Tracer
from octavo.outputs import RequestOutput
from octavo.params import SamplingParams
from octavo.tools.answer_reader import AnswerReader

log = logging.getLogger(__name__)

COMPILING_THREADS: Final = 512
"""Requests with constraints that are made ready at a time. Most of them only wait for a process;
those whose constraint is known shall find a thread all the same."""
SLOW_SECONDS: Final = 1.0
"""After which a log tells what a plugin's parser took, once a request."""
_Made = TypeVar("_Made")
# Text of this length takes the tokenizer about a millisecond, which an event loop can spare.
MAX_CHARS_ON_LOOP: Final = 4096


class Making(NamedTuple):
    """How a request is made."""

    prepare: Callable[[], PreparedRequest]
    in_thread: bool
    """It may take long."""
    compiles: bool
    """It may wait for another process, and others shall not wait for it."""


class Submitted(NamedTuple):
    """A request that the engine has."""

    prepared: PreparedRequest
    arrival_seconds: float
    engine: EngineThread
    stream: OutputStream

    def release(self) -> None:
        """End it: nobody reads it any more."""
        self.engine.release(self.prepared.request.request_id, self.stream)


def making_of(
    prepare: Callable[[], PreparedRequest], prompt: Prompt, params: object, is_foreign: bool
) -> Making:
    """Where a prompt's request is made; ``is_foreign``: by code that may take any time."""
    has_items = isinstance(prompt, Mapping) and bool(prompt.get("multi_modal_data"))
    text = prompt.get("prompt") if isinstance(prompt, Mapping) else prompt
    is_long = isinstance(text, str) and len(text) > MAX_CHARS_ON_LOOP
    compiles = is_guided(params) or has_items or is_foreign
    return Making(prepare, in_thread=compiles or is_long, compiles=compiles)


def making_of_chat(
    front: Frontend,
    conversation: Conversation,
    params: SamplingParams | None,
    options: RequestOptions,
) -> Making:
    """Where a conversation's request is made.

    How long its text is shows only when a template has run, which may take long itself.
    """
    is_strangers_template = conversation.strict and conversation.chat_template is not None
    compiles = (
        bool(conversation.tools)
        or is_guided(params)
        or has_media(conversation.messages, front.folder.capabilities.modalities)
        or is_strangers_template
        or front.runs_foreign_code
    )
    prepare = partial(front.prepare_chat, conversation, params, options)
    return Making(prepare, in_thread=True, compiles=compiles)


class CompilingThreads(ThreadPoolExecutor):
    """For calls that may wait for another process, for which others shall not wait."""

    def __init__(self) -> None:
        super().__init__(COMPILING_THREADS, "octavo-compiling")

    async def run(self, call: Callable[[], _Made]) -> _Made:
        """What it returns."""
        return await asyncio.get_running_loop().run_in_executor(self, call)

    async def read(self, reader: AnswerReader, output: RequestOutput) -> None:
        """Take the answers apart: long ones beside the event loop, and all by foreign parsers."""
        if reader.foreign:
            await self.run(partial(_read_foreign, reader, output))
        elif sum(len(each.text) for each in output.outputs) > MAX_CHARS_ON_LOOP:
            await asyncio.to_thread(reader.take, output)
        else:
            reader.take(output)

    async def make(self, making: Making, check_open: Callable[[], None]) -> PreparedRequest:
        """Make a request where it holds up nobody.

        ``check_open`` raises when the engine has ended: what fails since then fails for that
        reason.
        """

        def compiled() -> PreparedRequest:
            check_open()
            try:
                return making.prepare()
            except Exception:
                check_open()
                raise

        if making.compiles:
            return await self.run(compiled)
        return await asyncio.to_thread(making.prepare) if making.in_thread else making.prepare()


async def outputs_of(
    submit: Callable[[], Awaitable[Submitted]], threads: CompilingThreads, tracer: Tracer | None
) -> AsyncGenerator[RequestOutput, None]:
    """Queue a request and give its outputs; leaving them ends it."""
    submitted = await submit()
    prepared, stream = submitted.prepared, submitted.stream
    finished = False
    try:
        with tracer.begin(prepared, submitted.arrival_seconds) if tracer else nullcontext() as span:
            while not finished:
                output = await stream.next()
                finished = output.finished
                if span is not None:
                    span.take(output)
                if output.error is not None:
                    raise error_class(output.error_type or "")(output.error)
                if prepared.reader is not None:
                    await threads.read(prepared.reader, output)
                yield output
    finally:
        if not finished:
            submitted.release()


def is_guided(params: object) -> bool:
    """Whether a caller, whatever was given, asks for a constraint."""
    return getattr(params, "guided", None) is not None


def _read_foreign(reader: AnswerReader, output: RequestOutput) -> None:
    began = time.monotonic()
    reader.take(output)
    seconds = time.monotonic() - began
    if seconds > SLOW_SECONDS and not reader.was_slow:
        reader.was_slow = True
        log.warning("%s took %.1f s to read a piece of an answer", reader.foreign, seconds)
