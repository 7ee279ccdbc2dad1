"""Work in a copy of this process, which may die of it: what was loaded needs no loading again."""

from __future__ import annotations

import gc
import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NoReturn

from octavo.guided.process import data_bytes

_PIECE: Final = 2**16
_SIZE: Final = 4
"""Bytes that say how long a question or an answer is."""
MOST_ANSWERS: Final = 64
MOST_GROWTH: Final = 2**26
"""Bytes that a copy may have more than at its beginning; then, too, it answers no more."""
NICENESS: Final = 3
"""The nice value of long work, which others need not wait for."""


class Copy:
    """A copy of this process that answers one question after another, until it dies of one.

    The process has one thread. Making a copy takes longer than most answers.
    """

    def __init__(self, answer: Callable[[bytes], bytes]) -> None:
        questions, self._asking = os.pipe()
        self._reading, answers = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            os.close(self._asking)  # or it would not see its end
            _serve(answer, questions, answers)
        os.close(questions)
        os.close(answers)
        self._status: int | None = None
        self.was_late = False
        """It was ended because time was up."""
        self.is_spent = False
        """It answers no more."""

    def ask(self, question: bytes, seconds: float) -> bytes:
        """Its answer; empty when it has not answered by then, or died."""
        until = time.monotonic() + seconds
        with suppress(BrokenPipeError):
            _write(self._asking, question)
        data = bytearray()
        waiting = select.poll()
        waiting.register(self._reading, select.POLLIN)
        while waiting.poll(max(0.0, until - time.monotonic()) * 1000):
            piece = os.read(self._reading, _PIECE)
            data += piece
            size = int.from_bytes(data[:_SIZE])
            if len(data) == _SIZE + size and size:
                self.is_spent = bool(data[_SIZE])
                return bytes(data[_SIZE + 1 :])
            if not piece:
                return b""
        self.was_late = True
        return b""

    def end(self) -> int:
        """End it if it has not ended; return its exit status, a signal's number below zero."""
        if self._status is None:
            os.close(self._asking)
            os.close(self._reading)
            if self.was_late:
                os.kill(self._pid, signal.SIGKILL)
            self._status = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        return self._status


def _serve(answer: Callable[[bytes], bytes], questions: int, answers: int) -> NoReturn:
    status = 1
    with suppress(BaseException):
        gc.disable()  # it would look at much for the little that one answer leaves
        most = data_bytes() + MOST_GROWTH
        is_spent, num_answers = False, 0
        while not is_spent and (question := _read(questions)):
            data = answer(question)
            num_answers += 1
            is_spent = num_answers == MOST_ANSWERS or data_bytes() > most
            _write(answers, bytes([is_spent]) + data)
        status = 0
    os._exit(status)


def _read(pipe: int) -> bytes:
    """The next question; empty when nobody asks any more."""
    data = bytearray()
    while piece := os.read(pipe, _PIECE):
        data += piece
        if len(data) >= _SIZE and len(data) == _SIZE + int.from_bytes(data[:_SIZE]):
            return bytes(data[_SIZE:])
    return b""


def _write(pipe: int, data: bytes) -> None:
    unsent = memoryview(len(data).to_bytes(_SIZE) + data)
    while unsent:
        unsent = unsent[os.write(pipe, unsent) :]
