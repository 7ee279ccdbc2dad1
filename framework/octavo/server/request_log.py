"""What ``--log-requests`` and ``--log-outputs`` write."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from octavo.async_llm import AsyncLLM
from octavo.config.server import ServeConfig
from octavo.inputs import PreparedRequest
from octavo.outputs import RequestOutput
from octavo.params import LoRARequest

log = logging.getLogger("octavo.requests")


class LoggedLLM(AsyncLLM):
    """Writes requests and outputs to the log, cut."""

    serve: ServeConfig = ServeConfig()

    def _stream(
        self,
        prepare: Callable[[], PreparedRequest],
        lora_request: LoRARequest | None,
        *,
        in_thread: bool,
        compiles: bool,
    ) -> AsyncGenerator[RequestOutput, None]:
        if self.serve.log_requests or self.serve.log_outputs:
            return self._logged(prepare, lora_request, in_thread, compiles)
        return super()._stream(prepare, lora_request, in_thread=in_thread, compiles=compiles)

    async def _logged(
        self,
        prepare: Callable[[], PreparedRequest],
        lora_request: LoRARequest | None,
        in_thread: bool,
        compiles: bool,
    ) -> AsyncGenerator[RequestOutput, None]:
        serve, most = self.serve, self.serve.max_log_chars

        def logged() -> PreparedRequest:
            prepared = prepare()
            if serve.log_requests:
                log.info("%s asks: %s", prepared.request.request_id, _described(prepared, most))
            return prepared

        texts: dict[int, str] = {}
        request_id, reasons = "", {}
        stream = super()._stream(logged, lora_request, in_thread=in_thread, compiles=compiles)
        async with aclosing(stream) as outputs:
            async for output in outputs:
                if serve.log_outputs:
                    request_id = output.request_id
                    for part in output.outputs:
                        texts[part.index] = (texts.get(part.index, "") + part.text)[: most + 1]
                        reasons[part.index] = part.finish_reason
                yield output
        for index, text in texts.items():
            log.info("%s answers: %r (%s)", request_id, _cut(text, most), reasons[index])


def _described(prepared: PreparedRequest, most: int) -> str:
    ids = prepared.request.prompt_token_ids
    prompt = prepared.prompt if prepared.prompt is not None else str(ids[:most])
    sampling = prepared.request.sampling
    return f"{_cut(prompt, most)!r} ({len(ids)} tokens), n={len(prepared.request.sequences)}, " + (
        _cut(repr(sampling), 10 * most)
    )


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[:most] + "..."
