"""What ``--log-requests`` and ``--log-outputs`` write."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from octavo.config.server import ServeConfig
from octavo.frontend.async_llm import AsyncLLM
from octavo.frontend.async_requests import Making, Submitted
from octavo.inputs import PreparedRequest
from octavo.outputs import RequestOutput
from octavo.params import LoRARequest

log = logging.getLogger("octavo.requests")


class LoggedLLM(AsyncLLM):
    """Writes requests and outputs to the log, cut."""

    serve: ServeConfig = ServeConfig()

    async def _submit(self, making: Making, lora_request: LoRARequest | None) -> Submitted:
        prepare = making.prepare

        def logged() -> PreparedRequest:
            prepared = prepare()
            described = _described(prepared, self.serve.max_log_chars)
            log.info("%s asks: %s", prepared.request.request_id, described)
            return prepared

        if self.serve.log_requests:
            making = making._replace(prepare=logged)
        return await super()._submit(making, lora_request)

    def _stream(
        self, submit: Callable[[], Awaitable[Submitted]]
    ) -> AsyncGenerator[RequestOutput, None]:
        stream = super()._stream(submit)
        return self._logged(stream) if self.serve.log_outputs else stream

    async def _logged(
        self, stream: AsyncGenerator[RequestOutput, None]
    ) -> AsyncGenerator[RequestOutput, None]:
        most = self.serve.max_log_chars
        texts: dict[int, str] = {}
        request_id, reasons = "", {}
        async with aclosing(stream) as outputs:
            async for output in outputs:
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
