"""``AsyncLLM`` with the methods that vLLM's documents show."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from typing import Any

from octavo.errors import EngineDeadError
from octavo.frontend.async_llm import AsyncLLM
from octavo.frontend.async_requests import Submitted
from octavo.inputs import Prompt
from octavo.outputs import RequestOutput
from octavo.params import LoRARequest, SamplingParams


class AsyncLLMEngine(AsyncLLM):
    """An engine for any event loop, to which requests may be added before they are read."""

    async def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        lora_request: LoRARequest | None = None,
        priority: int = 0,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Queue a prompt, and return its outputs, which come whether they are read or not.

        Closing or dropping them ends the request. ``generate`` queues it when the first output is
        asked for.
        """
        making = self._making(request_id, prompt, params, priority=priority)
        submitted = await self._submit(making, lora_request)

        async def submit() -> Submitted:
            return submitted

        return _Queued(submitted, self._stream(submit))

    async def abort_request(self, request_id: str | Iterable[str]) -> None:
        """End requests; the same as ``abort``, of one id or several."""
        for each in [request_id] if isinstance(request_id, str) else request_id:
            await self.abort(each)

    def has_unfinished_requests(self) -> bool:
        """Whether requests are waiting or running."""
        return self.get_num_unfinished_requests() > 0

    def get_num_unfinished_requests(self) -> int:
        """Requests that are waiting or running."""
        return self._engine.num_open

    async def check_health(self) -> None:
        """Raise EngineDeadError if the engine has ended."""
        self._engine.check_open()

    @property
    def is_running(self) -> bool:
        """Whether the engine takes requests."""
        return self.alive

    @property
    def errored(self) -> bool:
        """Whether the engine has ended."""
        return not self.alive

    @property
    def dead_error(self) -> EngineDeadError:
        """What requests get once the engine has ended."""
        return EngineDeadError(self.end or "the engine runs")


class _Queued(AsyncGenerator[RequestOutput, None]):
    """The outputs of a request that is under way before its first one is asked for.

    A generator of Python that is left before it has begun runs none of its code, and would not end
    the request.
    """

    def __init__(self, submitted: Submitted, outputs: AsyncGenerator[RequestOutput, None]) -> None:
        self._submitted: Submitted | None = submitted
        """None: the generator has begun and ends the request itself."""
        self._outputs = outputs

    async def asend(self, value: None) -> RequestOutput:
        self._submitted = None
        return await self._outputs.asend(value)

    async def athrow(self, *error: Any) -> RequestOutput:
        self._leave()
        return await self._outputs.athrow(*error)

    async def aclose(self) -> None:
        self._leave()
        await self._outputs.aclose()

    def _leave(self) -> None:
        submitted, self._submitted = self._submitted, None
        if submitted is not None:
            submitted.release()

    def __del__(self) -> None:
        if self._submitted is None:
            return
        # Of a collection that may run anywhere, also where the engine's lock is held.
        loop = self._submitted.stream.mailbox.loop
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._submitted.release)
