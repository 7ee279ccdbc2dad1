"""``AsyncLLM`` with the methods that vLLM's documents show."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable

from octavo.async_llm import AsyncLLM
from octavo.async_requests import Submitted
from octavo.errors import EngineDeadError
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

        ``generate`` queues it when the first output is asked for.
        """
        making = self._making(request_id, prompt, params, priority=priority)
        submitted = await self._submit(making, lora_request)

        async def submit() -> Submitted:
            return submitted

        return self._stream(submit)

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
