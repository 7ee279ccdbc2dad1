"""A socket client that is closed at any line of a call under way, as a signal's handler may."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import pytest
import zmq

from octavo.engine import socket_client
from octavo.engine.socket_client import SocketClient
from octavo.errors import EngineDeadError
from octavo.messages import AdapterHead, PackedAdapter, StepOutputs


class Client(SocketClient):
    """A client of an engine that only sends what a test makes it send."""

    def __init__(self, folder: Path) -> None:
        with ExitStack() as cleanup:
            super().__init__(folder / "engine", cleanup)
            context = zmq.Context()
            cleanup.callback(context.term)
            self.engine = context.socket(zmq.DEALER)
            cleanup.callback(self.engine.close, linger=0)
            self.engine.connect(self._address)
            self._wait_for_engine()
            self._cleanup = cleanup.pop_all()

    def close(self) -> None:
        self._end = self._end or "the engine was closed"
        self._cleanup.close()

    def _is_gone(self) -> bool:
        return self._end is not None

    def _died(self) -> EngineDeadError:
        self._end = self._end or "it died"
        return EngineDeadError(self._end)


class CloseAtLine:
    """Closes a client before the ``at``-th line that its module runs."""

    def __init__(self, client: Client, at: int) -> None:
        self.client, self.left = client, at

    def __call__(self, frame: FrameType, event: str, _: Any) -> CloseAtLine | None:
        if frame.f_code.co_filename != socket_client.__file__:
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                self.client.close()
        return self


CALLS: dict[str, Callable[[Client], object]] = {
    "poll": lambda client: client.poll(0.001),
    "abort": lambda client: client.abort([1]),
    "add_adapter": lambda client: client.add_adapter(ADAPTER),
}
ADAPTER = PackedAdapter(
    AdapterHead(content_hash="a", rank=1, dtype="float32", shapes={}), memoryview(bytes(100_000))
)


@pytest.mark.parametrize("waits", ["nothing", "a message", "a wake"])
@pytest.mark.parametrize("method", CALLS)
def test_a_client_may_be_closed_at_any_line(tmp_path: Path, method: str, waits: str) -> None:
    at, closed = 0, True
    while closed:
        at += 1
        client = Client(tmp_path)
        if waits == "a message":
            client.engine.send(msgspec.msgpack.encode(StepOutputs()))
        elif waits == "a wake":
            client.wake()
        before = sys.gettrace()
        close_at_line = CloseAtLine(client, at)
        sys.settrace(close_at_line)
        try:
            CALLS[method](client)
        except EngineDeadError as error:
            assert "was closed" in str(error)  # noqa: PT017
        finally:
            sys.settrace(before)
            closed = close_at_line.left <= 0
            client.close()
    assert at > 5
