"""An engine that its caller steps, as vLLM's documents show it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Self

from octavo.adapters.loaded import LoadedAdapters
from octavo.errors import ConfigError, EngineDeadError
from octavo.frontend.frontend import start_frontend
from octavo.frontend.interrupts import InterruptsBetweenSteps
from octavo.frontend.open_requests import OpenRequests
from octavo.inputs import Prompt
from octavo.messages import EngineReady
from octavo.model_folder.tokenizer import underlying
from octavo.outputs import RequestOutput
from octavo.params import LoRARequest, SamplingParams

if TYPE_CHECKING:
    from octavo.frontend.engine_keywords import EngineKeywords

POLL_SECONDS: Final = 1.0


class LLMEngine:
    """A model and its engine, for one thread that adds requests and steps.

    Options are those of ``LLM``, which is simpler where all requests are known beforehand.
    """

    def __init__(
        self, model: str | os.PathLike[str], *, engine_process: bool | None = None, **options: Any
    ) -> None:
        self._front = start_frontend(
            {"model": model, **options}, engine_process=engine_process, caller="LLMEngine"
        )
        client = self._front.client
        self._open = OpenRequests(client, self._front.outputs)
        self._adapters = LoadedAdapters(
            self._front.config, client.ready.adapters, self._front.host, client
        )
        self._closed = False

    @classmethod
    def from_engine_args(cls, engine_args: EngineKeywords) -> Self:
        """Return one of options that were collected before."""
        return cls(**engine_args.options())

    def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        lora_request: LoRARequest | None = None,
        priority: int = 0,
    ) -> None:
        """Queue a prompt; errors of what it carries are raised here.

        ``params`` None are the model's defaults; ``output_kind`` says what each output carries.
        """
        self._check_open()
        with self._adapters.leased(lora_request) as adapter:
            prepared = self._front.inputs.process(
                request_id, prompt, params, priority=priority, adapter=adapter
            )
            self._open.add([prepared])

    def step(self) -> list[RequestOutput]:
        """Run a step and return the outputs that have come, of this or an earlier one.

        Without unfinished requests, nothing. A request that fails inside the engine has ``error``
        set, and the others go on.
        """
        self._check_open()
        if not self._open:
            return []
        with InterruptsBetweenSteps():
            step = self._front.client.poll(POLL_SECONDS)
            return [] if step is None else self._open.take(step)

    def abort_request(self, request_ids: str | Sequence[str]) -> None:
        """End requests, of which no output comes any more; unknown ids are left out."""
        self._check_open()
        self._open.abort([request_ids] if isinstance(request_ids, str) else request_ids)

    def has_unfinished_requests(self) -> bool:
        """Whether there is something to step for."""
        return len(self._open) > 0

    def get_num_unfinished_requests(self) -> int:
        """Requests that are waiting or running."""
        return len(self._open)

    def get_tokenizer(self) -> Any:
        """Return the Transformers tokenizer (or what the tokenizer plugin has in its place)."""
        if self._front.tokenizer is None:
            raise ConfigError("there is no tokenizer, because skip_tokenizer_init is set")
        return underlying(self._front.tokenizer)

    @property
    def ready(self) -> EngineReady:
        """What the engine has said of itself: the sizes of its cache, steps and vocabulary."""
        return self._front.client.ready

    def reset_prefix_cache(self) -> bool:
        """Forget cached prefixes that no request holds; returns whether all are forgotten."""
        self._check_open()
        return bool(self._front.client.call("reset_prefix_cache"))

    def close(self) -> None:
        """End the engine and free its memory; calling it again does nothing."""
        if not self._closed:
            self._closed = True
            self._front.client.close()
            self._front.close()

    shutdown = close

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise EngineDeadError("this LLMEngine was closed; make a new one")
