"""Decode steps recorded as CUDA graphs: the host launches a whole step with one call.

A recording serves every step of up to so many rows: it reads which slots run from one buffer, and
all else (tokens, positions, lengths, block tables, parameters) from the persistent device state.
Rows that a recording has too many run in the padding slot. A few sizes are recorded before the
first request, the others while there is nothing to do or when a step first needs them.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo_registry.faults import one_line

log = logging.getLogger(__name__)

StepFunction = Callable[[Tensor], Tensor]
Recording = tuple[torch.cuda.CUDAGraph, Tensor]

SMALL_SIZES = (1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64)
SIZES = (*SMALL_SIZES, *range(80, 257, 16), *range(288, 1025, 32))
"""Rows of a recording. Steps of more rows than the largest run as they are: the device is busy with
one for longer than the host needs to launch it."""


class DecodeGraphs:
    """Recordings by kind and size; what a kind does follows from its name, rows and device state.

    All share the memory of their scratch, so that it is best to begin with the most rows.
    """

    def __init__(self, max_rows: int, padding_slot: int, device: torch.device) -> None:
        sizes = [size for size in SIZES if size < max_rows]
        self._sizes = [*sizes, max_rows] if max_rows <= SIZES[-1] else sizes
        self._padding_slot = padding_slot
        self._slots_R = torch.full(
            (self._sizes[-1],), padding_slot, dtype=torch.int32, device=device
        )
        self._on_device = np.full(self._sizes[-1], padding_slot, np.int32)
        self._placed: tuple[int, Tensor] = (0, self._slots_R)
        self._steps: dict[str, StepFunction] = {}
        self._recordings: dict[tuple[str, int], Recording | None] = {}
        """None: there is no memory for it."""
        self._can_record = True
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)

    def takes(self, num_rows: int) -> bool:
        """Whether there is a size for so many rows."""
        return bool(num_rows <= self._sizes[-1])

    def place(self, slots: NDArray[np.integer], first_step: int) -> Tensor:
        """The slots on the device, padded to a recording's size.

        They are sent where they differ from the last step's, which is not looked at where both
        repeat ``first_step``; 0: no step has them.
        """
        placed, slots_R = self._placed
        if placed == first_step != 0:
            return slots_R
        size = self._sizes[bisect_left(self._sizes, len(slots))]
        wanted = np.full(size, self._padding_slot, np.int32)
        wanted[: len(slots)] = slots
        if not np.array_equal(wanted, self._on_device[:size]):
            self._on_device[:size] = wanted
            self._slots_R[:size].copy_(torch.from_numpy(wanted).pin_memory(), non_blocking=True)
        self._placed = first_step, self._slots_R[:size]
        return self._placed[1]

    def run(self, slots_R: Tensor, kind: str, step: StepFunction) -> Tensor:
        """Run ``step`` on slots that ``place`` gave; its result is valid until the next run.

        The first time it runs as it is, for it may have to load kernels, and is recorded then.
        """
        recording = self._recordings.get((kind, len(slots_R)))
        if recording is not None:
            graph, result = recording
            graph.replay()
            return result
        result = step(slots_R)
        self._steps[kind] = step
        if self._can_record and (kind, len(slots_R)) not in self._recordings:
            self._record(kind, slots_R, step)
        return result

    def prepare(self, num_rows: int, kind: str, step: StepFunction) -> None:
        """Record a step of up to so many rows before one is needed, by running padding."""
        slots = np.full(min(num_rows, self._sizes[-1]), self._padding_slot, np.intp)
        self.run(self.place(slots, 0), kind, step)

    def prepare_another(self) -> bool:
        """Record a size that no step of its kind has needed yet; False: none is left."""
        for kind, step in self._steps.items():
            for size in reversed(self._sizes):
                if self._can_record and (kind, size) not in self._recordings:
                    self.prepare(size, kind, step)
                    return True
        return False

    def forget(self) -> None:
        """Drop all recordings; steps will be recorded anew."""
        self._steps.clear()
        self._recordings.clear()
        self._pool = torch.cuda.graph_pool_handle()  # the old one ends with its last recording

    def _record(self, kind: str, slots_R: Tensor, step: StepFunction) -> None:
        """Record a step without running it. torch.cuda.graph would collect garbage and wait."""
        size = len(slots_R)
        start = time.monotonic()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.stream(self._stream):
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    result = step(slots_R)
                except BaseException:
                    with suppress(RuntimeError):  # what the step has raised says more
                        graph.capture_end()
                    raise
                graph.capture_end()
        except torch.OutOfMemoryError:
            log.warning("no memory to record decode steps of %d rows: they are launched anew", size)
            self._recordings[kind, size] = None
            return
        except Exception as error:
            # Steps run all the same: a model that waits for the device cannot be recorded.
            log.warning(
                "decode steps cannot be recorded and will be launched anew each time: %s",
                one_line(error),
            )
            self._can_record = False
            # The generator was left as if the recording went on.
            generator = torch.cuda.default_generators[self._slots_R.device.index]
            generator.graphsafe_set_state(generator.clone_state())
            return
        self._recordings[kind, size] = graph, result
        milliseconds = (time.monotonic() - start) * 1e3
        log.debug("recorded %s for %d rows in %.1f ms", kind, size, milliseconds)
