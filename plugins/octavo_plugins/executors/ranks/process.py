"""A rank's process, as the engine's process sees it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

import msgspec

from octavo.engine.output_relay import OutputRelay, how_it_ended
from octavo.errors import EngineDeadError
from octavo.worker.wire import ENCODER, FromRank, ToRank

Arrived = tuple[int, FromRank | None]
"""A rank, and what it has answered; None: it answers no more."""
CLOSE_SECONDS = 1.0
LAST_WORDS_SECONDS = 1.0


class RankProcess:
    """Started at construction; ends when it is closed, or with this process."""

    def __init__(self, rank: int, memory: int, arrived: SimpleQueue[Arrived]) -> None:
        """``memory`` is the file descriptor of what ranks share; answers go to ``arrived``."""
        self._rank = rank
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "octavo.worker"),
                    *("--socket", str(theirs.fileno()), "--memory", str(memory)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs.fileno(), memory),
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                start_new_session=True,  # Ctrl-C in the terminal is for the parent only
            )
        self._socket = ours
        self._connection: Connection[Any, Any] = Connection(os.dup(ours.fileno()))
        assert self._process.stdout is not None  # a pipe was asked for
        self._relay = OutputRelay(self._process.stdout, lambda: None)
        # A rank that nobody reads from would wait, and not read what it is told.
        self._reader = threading.Thread(target=self._read, args=(arrived,), daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def send(self, message: ToRank, *frames: Any) -> None:
        """Tell it something; a plan's frames follow."""
        try:
            self._connection.send_bytes(ENCODER.encode(message))
            for frame in frames:
                self._connection.send_bytes(frame)
        except OSError as error:
            raise self.death() from error

    def hang_up(self) -> None:
        """Let it end, unless it waits for others; calling twice does nothing."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # also ends the reader

    def close(self) -> None:
        """See it end."""
        try:
            self._process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self._connection.close()
        self._socket.close()
        assert self._process.stdin is not None
        self._process.stdin.close()

    def kill(self) -> None:
        """End it at once, whatever it waits for."""
        self._process.kill()

    def death(self) -> EngineDeadError:
        """Why nothing can be said to it."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(LAST_WORDS_SECONDS)
        code, last = self._process.poll(), self._relay.last_line(LAST_WORDS_SECONDS)
        end = "closed its connection" if code is None else how_it_ended(code)
        said = f"; its last line was: {last}" if last else ""
        return EngineDeadError(f"rank {self._rank} {end}{said}")

    def _read(self, arrived: SimpleQueue[Arrived]) -> None:
        decoder = msgspec.msgpack.Decoder(FromRank)
        try:
            with suppress(EOFError, OSError):
                while True:
                    arrived.put((self._rank, decoder.decode(self._connection.recv_bytes())))
        finally:  # whatever it was, nothing more comes
            arrived.put((self._rank, None))
