"""Requests of an event loop: one async generator each, many at a time."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from octavo.adapters.leases import AdapterLeases
from octavo.adapters.loaded import LoadedAdapters
from octavo.config import EngineConfig
from octavo.detokenizing.processor import RequestObserver
from octavo.errors import ConfigError, QueueFullError
from octavo.frontend.async_requests import (
    CompilingThreads,
    Making,
    Submitted,
    making_of,
    making_of_chat,
    outputs_of,
)
from octavo.frontend.beams_async import search_beams
from octavo.frontend.frontend import Frontend, start_frontend
from octavo.frontend.streaming import Mailboxes, OutputStream
from octavo.frontend.thread import EngineThread
from octavo.inputs import ChatTemplate, Conversation, Prompt, RequestOptions
from octavo.inputs.foreign_template import ForeignTemplate
from octavo.inputs.messages import Message
from octavo.inputs.processor import with_adapter
from octavo.messages import EngineReady
from octavo.model_folder import ModelFolder
from octavo.model_folder.tokenizer import underlying
from octavo.observability.engine_metrics import EngineReport, read_report
from octavo.observability.tracing import Tracer
from octavo.outputs import BeamSearchOutput, RequestOutput
from octavo.params import BeamSearchParams, LoRARequest, SamplingParams
from octavo.tools.answer_format import AnswerFormat
from octavo_registry import PluginHost
from octavo_registry.tokenizer import Tokenizer

if TYPE_CHECKING:
    from octavo.frontend.engine_keywords import EngineKeywords


class AsyncLLM:
    """A model and its engine, for any event loop.

    Options are those of ``LLM``; the engine has a process of its own unless ``engine_process`` is
    False. Making one blocks until the model is loaded.
    """

    def __init__(
        self, model: str | os.PathLike[str], *, engine_process: bool = True, **options: Any
    ) -> None:
        self._begin(
            start_frontend(
                {"model": model, **options}, engine_process=engine_process, caller="AsyncLLM"
            )
        )

    @classmethod
    def from_engine_args(cls, engine_args: EngineKeywords) -> Self:
        """Return one of options that were collected before."""
        return cls(**engine_args.options())

    @classmethod
    def of_frontend(cls, front: Frontend) -> Self:
        """Return one over what has been started already."""
        made = cls.__new__(cls)
        made._begin(front)
        return made

    def _begin(self, front: Frontend) -> None:
        self._front = front
        self._engine = EngineThread(self._front.client, self._front.outputs)
        self.adapters = self._loaded_adapters()
        self._mailboxes = Mailboxes()
        self._tracer: Tracer | None = None
        self._compiling = CompilingThreads()
        self._leases = AdapterLeases()
        # Also at the interpreter's exit, where the engine's thread must not be inside a kernel.
        self._close = weakref.finalize(self, self._engine.close)

    def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        lora_request: LoRARequest | None = None,
        priority: int = 0,
        add_special_tokens: bool = True,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Continue a prompt; each output is as ``sampling_params.output_kind`` says.

        Leaving the generator ends the request. A slow reader gets fewer and longer outputs. Raises
        RequestFailedError when the request fails inside the engine, QueueFullError when that has
        no room for it, and EngineDeadError when the engine ends.
        """
        making = self._making(
            request_id,
            prompt,
            sampling_params,
            priority=priority,
            add_special_tokens=add_special_tokens,
        )
        return self._stream(partial(self._submit, making, lora_request))

    def chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        parallel_tool_calls: bool | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
        lora_request: LoRARequest | None = None,
        priority: int = 0,
        cache_salt: str = "",
        strict: bool = False,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Answer a conversation; the arguments are those of ``LLM.chat`` and ``generate``.

        ``strict`` raises for what the chat template would drop without a word, and takes
        ``chat_template`` for a stranger's, which runs under limits in another process.
        """
        conversation = Conversation(
            messages=messages,
            tools=tools,
            tool_choice=tool_choice,
            parallel_tool_calls=parallel_tool_calls,
            documents=documents,
            chat_template=chat_template,
            chat_template_kwargs=chat_template_kwargs,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            mm_processor_kwargs=mm_processor_kwargs,
            strict=strict,
        )
        named = request_id or uuid.uuid4().hex
        options = RequestOptions(request_id=named, priority=priority, cache_salt=cache_salt)
        return self.answer(conversation, sampling_params, options, lora_request)

    def answer(
        self,
        conversation: Conversation,
        sampling_params: SamplingParams | None,
        options: RequestOptions,
        lora_request: LoRARequest | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Answer a conversation that is one value, as ``chat`` does."""
        making = making_of_chat(self._front, conversation, sampling_params, options)
        return self._stream(partial(self._submit, making, lora_request))

    async def beam_search(
        self,
        prompt: Prompt,
        params: BeamSearchParams,
        request_id: str | None = None,
        *,
        lora_request: LoRARequest | None = None,
        **options: Any,
    ) -> BeamSearchOutput:
        """Find the likeliest continuations of a prompt; ``options`` are those of ``generate``."""
        one = SamplingParams(max_tokens=1, guided=params.guided)
        making = self._making(request_id, prompt, one, **options)
        return await self._search(making, params, lora_request)

    async def chat_beams(
        self,
        conversation: Conversation,
        params: BeamSearchParams,
        options: RequestOptions,
        lora_request: LoRARequest | None = None,
    ) -> BeamSearchOutput:
        """Find the likeliest answers to a conversation."""
        one = SamplingParams(max_tokens=1, guided=params.guided)
        making = making_of_chat(self._front, conversation, one, options)
        return await self._search(making, params, lora_request)

    async def tokenize(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the text's token ids, as a prompt of it would have them."""
        return await asyncio.to_thread(self._front.inputs.encode, text, add_special_tokens)

    async def tokenize_chat(
        self, conversation: Conversation, *, add_special_tokens: bool = False
    ) -> list[int]:
        """Return the token ids of a conversation, in which media have all tokens that they take."""

        def encode() -> list[int]:
            ids = self._front.chat_ids(conversation)
            return self._front.inputs.with_special_tokens(ids) if add_special_tokens else ids

        return await self._compiling.run(encode)

    async def abort(self, request_id: str) -> None:
        """End a request; its generator gives what came so far, with the finish reason "abort"."""
        self._engine.abort(request_id)

    def restart(self) -> None:
        """Start another engine in the place of one that has ended; blocks until it is ready."""
        self._close()  # its process may still hold the device's memory
        front = self._front.with_new_engine()
        self._front = front
        self._engine = EngineThread(front.client, front.outputs)
        self.adapters = self._loaded_adapters(self.adapters)
        self._close = weakref.finalize(self, self._engine.close)

    def _loaded_adapters(self, before: LoadedAdapters | None = None) -> LoadedAdapters:
        front, facts = self._front, self._front.client.ready.adapters
        return LoadedAdapters(front.config, facts, front.host, self._engine, before=before)

    def kill(self, cause: str) -> None:
        """End an engine that hangs: its requests fail for this reason."""
        self._engine.kill(cause)

    @property
    def end(self) -> str | None:
        """Why the engine has ended; None while it has not."""
        return self._engine.end

    @property
    def alive(self) -> bool:
        """Whether the engine runs and takes requests."""
        return self._engine.alive

    @property
    def host(self) -> PluginHost:
        """The plugins of this process."""
        return self._front.host

    @property
    def seconds_without_progress(self) -> float:
        """How long requests have waited since the engine's last sign of life; 0 without any."""
        return self._engine.seconds_without_progress

    @property
    def ready(self) -> EngineReady:
        """What the engine has said of itself: the sizes of its cache, steps and vocabulary."""
        return self._front.client.ready

    @property
    def config(self) -> EngineConfig:
        """The options, as given."""
        return self._front.config

    @property
    def model_folder(self) -> ModelFolder:
        """The model's files, and what its architecture can do."""
        return self._front.folder

    def chat_template(self, given: str | None = None) -> ChatTemplate | ForeignTemplate:
        """Return what ``chat`` uses if it is strict. Raises PromptError if there is none."""
        return self._front.chat.template(given, is_foreign=True)

    async def read_template(self, given: str) -> ChatTemplate | ForeignTemplate:
        """Return the same, beside the event loop; what was read is remembered."""
        return await self._compiling.run(partial(self.chat_template, given))

    @property
    def answer_format(self) -> AnswerFormat:
        """The parsers of the model's tool calls and reasoning."""
        return self._front.answers

    @property
    def max_model_len(self) -> int:
        """Tokens of prompt and output together."""
        return self._front.client.ready.max_model_len

    @property
    def tokenizer(self) -> Tokenizer:
        """What the tokenizer plugin has made; raises ConfigError if there is none."""
        if self._front.tokenizer is None:
            raise ConfigError("there is no tokenizer, because skip_tokenizer_init is set")
        return self._front.tokenizer

    def get_tokenizer(self) -> Any:
        """Return the Transformers tokenizer (or what the tokenizer plugin has in its place)."""
        return underlying(self.tokenizer)

    def get_default_sampling_params(self) -> SamplingParams:
        """Return what ``generate`` uses without parameters: the model's own recommendation."""
        return self._front.inputs.default_params

    async def reset_prefix_cache(self) -> bool:
        """Forget cached prefixes that no request holds; returns whether all are forgotten."""
        return bool(await asyncio.wrap_future(self._engine.call("reset_prefix_cache")))

    def check_room(self) -> None:
        """Raise at once the QueueFullError that a request would get after the engine's step."""
        most, rows = self._front.config.scheduler.max_queued_requests, self.ready.max_num_seqs
        if most is not None and self._engine.num_open >= most + rows:
            raise QueueFullError(f"the queue is full: {most} requests wait; try later")

    async def stats(self) -> dict[str, int]:
        """Return the engine's counts: running, waiting, blocks, preemptions, prefix hits."""
        counts: dict[str, int] = await asyncio.wrap_future(self._engine.call("stats"))
        return counts

    async def metrics(self) -> EngineReport:
        """Return what the engine counts, for /metrics."""
        return read_report(await asyncio.wrap_future(self._engine.call("metrics")))

    def observe(self, observer: RequestObserver | None) -> None:
        """Tell an observer of every request from now on; there is one at a time."""
        self._front.outputs.observer = observer

    def trace(self, tracer: Tracer | None) -> None:
        """Make a span of every request from now on."""
        self._tracer = tracer

    def close(self) -> None:
        """End the engine; generators that still wait raise EngineDeadError. May be repeated."""
        self._close()
        self._front.close()
        self._compiling.shutdown(wait=False)
        self._leases.close()

    shutdown = close

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(self.close)

    def _making(
        self,
        request_id: str | None,
        prompt: Prompt,
        sampling_params: SamplingParams | None,
        **options: Any,
    ) -> Making:
        named = request_id or uuid.uuid4().hex
        process = self._front.inputs.process
        prepare = partial(process, named, prompt, sampling_params, **options)
        return making_of(prepare, prompt, sampling_params, self._front.runs_foreign_code)

    async def _search(
        self, making: Making, params: BeamSearchParams, lora_request: LoRARequest | None
    ) -> BeamSearchOutput:
        return await search_beams(
            self._front,
            await self._compiling.make(making, self._engine.check_open),
            params,
            lambda step: self._stream(partial(self._submit, step, lora_request)),
            self._compiling,
        )

    async def _submit(self, making: Making, lora_request: LoRARequest | None) -> Submitted:
        """Make a request and queue it."""
        arrival_seconds = time.monotonic()
        engine, adapters = self._engine, self.adapters  # others may have their place meanwhile
        engine.check_open()
        self.check_room()
        loop = asyncio.get_running_loop()
        adapter = await self._leases.lease(adapters, lora_request, engine.check_open)
        try:
            prepared = await self._compiling.make(making, engine.check_open)
            if adapter is not None:
                prepared = with_adapter(prepared, adapter.content_hash)
            kind, every = prepared.params.output_kind, self._front.config.scheduler.stream_interval
            stream = OutputStream(self._mailboxes.of(loop), delta=kind == "delta", interval=every)
            engine.submit(prepared, arrival_seconds, stream)
        finally:
            if adapter is not None:
                adapters.release(adapter)
        return Submitted(prepared, arrival_seconds, engine, stream)

    def _stream(
        self, submit: Callable[[], Awaitable[Submitted]]
    ) -> AsyncGenerator[RequestOutput, None]:
        return outputs_of(submit, self._compiling, self._tracer)
