"""``python -m octavo.guided.mask_child``: fills the masks of one backend's states."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Final

import msgspec
import numpy as np

from octavo.errors import RequestFailedError
from octavo.guided.checking import CPU_SECONDS, MEMORY_MIB, WALL_SECONDS
from octavo.guided.process import Limits, open_pipes, read_frame, write_frame
from octavo.guided.remote import Mask, StartMasks, Task, error_answer
from octavo_registry import PluginHost
from octavo_registry.guided import Constraint, Guide, GuideState

TOTAL_MIB: Final = 2048
"""Most for all guides and states; without room this process ends, and a new one begins."""


@dataclass(slots=True)
class _State:
    state: GuideState
    length: int = 0


def main() -> None:
    """Answer until the parent closes standard input."""
    requests, answers = open_pipes()
    start = msgspec.msgpack.decode(read_frame(requests), type=StartMasks)
    try:
        masks = _Masks(start)
    except Exception as error:
        _answer(answers, error_answer(error, start.backend))
        return
    _answer(answers, Mask())
    while data := read_frame(requests):
        _answer(answers, masks.answer(msgspec.msgpack.decode(data, type=Task)))


class _Masks:
    def __init__(self, start: StartMasks) -> None:
        host = PluginHost.from_manifest(start.start.manifest)
        vocabulary = start.start.vocabulary()
        self._name = start.backend
        self._backend = host.guided_backends.make(start.backend, vocabulary)
        self._row = np.zeros((vocabulary.vocab_size + 31) // 32, np.int32)
        self._guides: dict[int, Guide] = {}
        self._states: dict[int, _State] = {}
        self._limits = Limits(total_mib=TOTAL_MIB)

    def answer(self, task: Task) -> Mask:
        """An error is the task's alone; without memory this process ends."""
        for number in task.gone_states:
            self._states.pop(number, None)
        for number in task.gone_guides:
            self._guides.pop(number, None)
        try:
            with self._limited(task.seconds_more):
                if task.kind is None:
                    return self._mask(task)
                constraint = Constraint(kind=task.kind, value=json.loads(task.value))
                self._guides[task.guide] = self._backend.compile(constraint)
                return Mask()
        except MemoryError:
            raise
        except BaseException as error:  # also a panic of native code
            self._states.pop(task.state, None)
            return error_answer(error, self._name)

    def _mask(self, task: Task) -> Mask:
        place = self._states.get(task.state)
        if place is None:
            place = self._states[task.state] = _State(self._guides[task.guide].start())
        if place.length > task.keep:
            place.state.rollback(place.length - task.keep)
        for token in task.tokens:
            if not place.state.accept(token):
                raise RequestFailedError(f"token {token} is refused, and a mask allowed it")
        place.length = task.keep + len(task.tokens)
        state = place.state
        forced = [int(token) for token in state.forced()]
        if not forced:
            state.fill_bitmask(self._row)
        return Mask(
            bits=b"" if forced else self._row.tobytes(),
            forced=forced,
            is_complete=bool(state.is_complete()),
            is_finished=bool(state.is_finished()),
        )

    @contextmanager
    def _limited(self, seconds_more: int) -> Iterator[None]:
        self._limits.begin(
            cpu_seconds=CPU_SECONDS + seconds_more,
            seconds=WALL_SECONDS + seconds_more,
            mib=MEMORY_MIB,
        )
        try:
            yield
        finally:
            self._limits.end()


def _answer(pipe: IO[bytes], mask: Mask) -> None:
    write_frame(pipe, msgspec.msgpack.encode(mask))


if __name__ == "__main__":
    main()
