"""Why a request is not queued."""

from __future__ import annotations

from collections.abc import Callable

from octavo.config import SchedulerConfig
from octavo.errors import OctavoError, ParameterError, PromptError, QueueFullError
from octavo.messages import EngineRequest
from octavo.scheduling.media import MediaScheduler
from octavo.scheduling.waiting import WaitingQueue


def refusal_of(
    request: EngineRequest,
    limits: SchedulerConfig,
    waiting: WaitingQueue,
    *,
    is_in_use: Callable[[int], bool],
    media: MediaScheduler,
) -> OctavoError | None:
    """None: it may wait. ``is_in_use`` knows the ids of live sequences."""
    most = limits.max_queued_requests
    if most is not None and len(waiting) >= most:
        return QueueFullError(f"the queue is full: {len(waiting)} requests wait; try later")
    num_tokens = len(request.prompt_token_ids)
    most = limits.max_queued_tokens
    if most is not None and num_tokens > most:
        return PromptError(f"the prompt has {num_tokens} tokens; max_queued_tokens={most}")
    total = waiting.num_tokens + num_tokens
    if most is not None and total > most:
        return QueueFullError(f"the queue is full: {total} prompt tokens would wait; try later")
    if any(is_in_use(sequence) for sequence in request.sequences):
        return ParameterError(f"request {request.request_id}: a sequence id is in use already")
    return media.refusal(request)
