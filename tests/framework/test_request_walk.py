"""How many calls of our own lie between who asks and the model: docs/life-of-a-request.md."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import pytest

from octavo import LLM, SamplingParams
from octavo.frontend.async_llm import AsyncLLM
from octavo.frontend.thread import EngineThread
from octavo.server.app import add_built_in_routes
from octavo.server.http.exchange import JsonEndpoint
from octavo_plugins.executors.local.executor import LocalExecutor
from octavo_plugins.models.llama.model import Llama
from server_in_process import MODEL, clients

OURS = ("octavo.", "octavo_plugins.")
TINY = {"dtype": "float32", "num_threads": 1}
Stack = Callable[[type, str], list[str]]


@pytest.fixture
def stack_at(monkeypatch: pytest.MonkeyPatch) -> Stack:
    """Named calls of our own packages, outermost first, under which a method was last called."""
    stacks: dict[tuple[type, str], list[str]] = {}

    def record(owner: type, method: str) -> None:
        original = getattr(owner, method)

        def recorded(*args):
            names = [f"{owner.__name__}.{method}"]
            frame: FrameType | None = sys._getframe(1)
            while frame is not None:
                is_ours = frame.f_globals["__name__"].startswith(OURS)
                name = frame.f_code.co_qualname
                if is_ours and not name.startswith("Module."):
                    names.append(name)
                frame = frame.f_back
            stacks[owner, method] = names[::-1]
            return original(*args)

        monkeypatch.setattr(owner, method, recorded)

    for owner, method in (
        (JsonEndpoint, "_stream"),
        (EngineThread, "submit"),  # from the event loop to the engine's thread
        (LocalExecutor, "submit"),  # from there to the thread that stands for the device
        (Llama, "forward"),
    ):
        record(owner, method)
    return lambda owner, method: stacks[owner, method]


def test_from_generate_to_the_models_forward_it_is_at_most_eight_calls(stack_at) -> None:
    with LLM(MODEL, **TINY) as llm:
        llm.generate([[5, 6, 7]], SamplingParams(max_tokens=2), use_tqdm=False)
    calls = [*stack_at(LocalExecutor, "submit"), *stack_at(Llama, "forward")]
    assert (calls[0], calls[-1]) == ("LLM.generate", "Llama.forward")
    assert len(calls) - 1 <= 8, calls


@pytest.mark.parametrize("stream", [False, True])
async def test_from_the_http_route_to_the_models_forward_it_is_at_most_fourteen(
    stack_at, stream
) -> None:
    """The engine in the same process: in one of its own, two more send and receive."""
    engine = AsyncLLM(MODEL, engine_process=False, **TINY)
    add_built_in_routes(engine.host.routes)
    (client,) = clients(engine)
    messages = [{"role": "user", "content": "Hello!"}]
    sent = {"model": MODEL, "messages": messages, "max_tokens": 2, "stream": stream}
    answer = await client.chat.completions.create(**sent)
    if stream:
        assert [piece async for piece in answer]
    engine.close()
    calls = stack_at(EngineThread, "submit")
    if stream:  # in a task of its own
        calls = stack_at(JsonEndpoint, "_stream") + calls[1:]
    calls = calls[calls.index("_Path.__call__") :]  # what the router calls for the path
    calls += [*stack_at(LocalExecutor, "submit"), *stack_at(Llama, "forward")]
    assert calls[-1] == "Llama.forward"
    assert len(calls) - 1 <= 14, calls
