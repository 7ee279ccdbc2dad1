"""Requests of an event loop: one async generator each, many at a time."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
import weakref
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from octavo.engine.thread import EngineThread
from octavo.errors import ConfigError, error_class
from octavo.frontend import start_frontend
from octavo.inputs import PreparedRequest, Prompt
from octavo.inputs.messages import Message
from octavo.outputs import RequestOutput
from octavo.params import LoRARequest, SamplingParams
from octavo.streaming import Mailbox, Stream
from octavo_registry import PluginHost

# Text of this length takes the tokenizer about a millisecond, which an event loop can spare.
MAX_CHARS_ON_LOOP: Final = 4096


class AsyncLLM:
    """A model and its engine, for any event loop.

    Options are those of ``LLM``; the engine has a process of its own unless ``engine_process`` is
    False. Making one blocks until the model is loaded.
    """

    def __init__(
        self, model: str | os.PathLike[str], *, engine_process: bool = True, **options: Any
    ) -> None:
        self._front = start_frontend(
            {"model": model, **options}, engine_process=engine_process, caller="AsyncLLM"
        )
        self._engine = EngineThread(self._front.client, self._front.outputs)
        self._mailbox: Mailbox | None = None
        # Also at the interpreter's exit, where the engine's thread must not be inside a kernel.
        self._close = weakref.finalize(self, self._engine.close)

    def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        lora_request: LoRARequest | None = None,
        priority: int = 0,
        add_special_tokens: bool = True,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Continue a prompt; each output is as ``sampling_params.output_kind`` says.

        Leaving the generator ends the request. A slow reader gets fewer and longer outputs. Raises
        RequestFailedError when the request fails inside the engine, QueueFullError when that has
        no room for it, and EngineDeadError when the engine ends.
        """
        prepare = partial(
            self._front.inputs.process,
            request_id or uuid.uuid4().hex,
            prompt,
            sampling_params,
            priority=priority,
            add_special_tokens=add_special_tokens,
        )
        return self._stream(prepare, lora_request, in_thread=_is_long(prompt))

    def chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        lora_request: LoRARequest | None = None,
        priority: int = 0,
        cache_salt: str = "",
    ) -> AsyncGenerator[RequestOutput, None]:
        """Answer a conversation; the arguments are those of ``LLM.chat`` and ``generate``."""

        def prepare() -> PreparedRequest:
            text = self._front.chat.render(
                messages,
                tools=tools,
                documents=documents,
                chat_template=chat_template,
                chat_template_kwargs=chat_template_kwargs,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
            )
            return self._front.inputs.process(
                request_id or uuid.uuid4().hex,
                text,
                sampling_params,
                priority=priority,
                cache_salt=cache_salt,
                add_special_tokens=False,
            )

        # How long the text is shows only when a template has run, which may take long itself.
        return self._stream(prepare, lora_request, in_thread=True)

    async def abort(self, request_id: str) -> None:
        """End a request; its generator gives what came so far, with the finish reason "abort"."""
        self._engine.abort(request_id)

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
    def max_model_len(self) -> int:
        """Tokens of prompt and output together."""
        return self._front.client.ready.max_model_len

    def get_tokenizer(self) -> Any:
        """Return the Transformers tokenizer (or what the tokenizer plugin has in its place)."""
        if self._front.tokenizer is None:
            raise ConfigError("there is no tokenizer, because skip_tokenizer_init is set")
        return self._front.tokenizer.hf

    def get_default_sampling_params(self) -> SamplingParams:
        """Return what ``generate`` uses without parameters: the model's own recommendation."""
        return self._front.inputs.default_params

    async def reset_prefix_cache(self) -> bool:
        """Forget cached prefixes that no request holds; returns whether all are forgotten."""
        return bool(await asyncio.wrap_future(self._engine.call("reset_prefix_cache")))

    async def stats(self) -> dict[str, int]:
        """Return the engine's counts: running, waiting, blocks, preemptions, prefix hits."""
        counts: dict[str, int] = await asyncio.wrap_future(self._engine.call("stats"))
        return counts

    def close(self) -> None:
        """End the engine; generators that still wait raise EngineDeadError. May be repeated."""
        self._close()

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(self.close)

    async def _stream(
        self,
        prepare: Callable[[], PreparedRequest],
        lora_request: LoRARequest | None,
        *,
        in_thread: bool,
    ) -> AsyncGenerator[RequestOutput, None]:
        arrival_seconds = time.monotonic()
        if lora_request is not None:
            raise ConfigError(f"lora_request={lora_request!r}: adapters are not available yet")
        prepared = await asyncio.to_thread(prepare) if in_thread else prepare()
        loop = asyncio.get_running_loop()
        if self._mailbox is None or self._mailbox.loop is not loop:
            self._mailbox = Mailbox(loop)
        stream = Stream(self._mailbox, delta=prepared.params.output_kind == "delta")
        self._engine.submit(prepared, arrival_seconds, stream)
        finished = False
        try:
            while not finished:
                output = await stream.next()
                finished = output.finished
                if output.error is not None:
                    raise error_class(output.error_type)(output.error)
                yield output
        finally:
            if not finished:
                self._engine.release(prepared.request.request_id)


def _is_long(prompt: Prompt) -> bool:
    text = prompt.get("prompt") if isinstance(prompt, Mapping) else prompt
    return isinstance(text, str) and len(text) > MAX_CHARS_ON_LOOP
