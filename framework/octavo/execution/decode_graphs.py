"""Decode steps recorded as CUDA graphs: the host launches a whole step with one call.

A recording serves every step of up to so many rows: it reads which slots run from one buffer, and
all else (tokens, positions, lengths, block tables, parameters) from the persistent device state.
Rows that a recording has too many run in the padding slot.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo_registry.faults import one_line

log = logging.getLogger(__name__)

StepFunction = Callable[[Tensor], Tensor]
Graph = tuple[torch.cuda.CUDAGraph, Tensor]


class DecodeGraphs:
    """Recordings by name and size; what one does follows from its name, rows and device state.

    All share the memory of their scratch, so that it is best to begin with the most rows.
    """

    def __init__(self, max_rows: int, padding_slot: int, device: torch.device) -> None:
        self._padding_slot = padding_slot
        self._slots_R = torch.full((max_rows,), padding_slot, dtype=torch.int32, device=device)
        self._on_device = np.full(max_rows, padding_slot, np.int32)
        self._placed: tuple[int, Tensor] = (0, self._slots_R)
        self._graphs: dict[tuple[str, int], Graph | None] = {}
        """None: there is no memory for it."""
        self._can_record = True
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)

    def place(self, slots: NDArray[np.integer], size: int, first_step: int) -> Tensor:
        """The slots on the device, padded to a recording's size.

        They are sent where they differ from the last step's, which is not looked at where both
        repeat ``first_step``; 0: no step has them.
        """
        placed, slots_R = self._placed
        if placed == first_step != 0:
            return slots_R
        wanted = np.full(size, self._padding_slot, np.int32)
        wanted[: len(slots)] = slots
        if not np.array_equal(wanted, self._on_device[:size]):
            self._on_device[:size] = wanted
            self._slots_R[:size].copy_(torch.from_numpy(wanted).pin_memory(), non_blocking=True)
        self._placed = first_step, self._slots_R[:size]
        return self._placed[1]

    def run(self, slots_R: Tensor, name: str, step: StepFunction) -> Tensor:
        """Run ``step`` on slots that ``place`` gave; its result is valid until the next run.

        The first time it runs as it is, for it may have to load kernels, and is recorded then.
        """
        graph = self._graphs.get((name, len(slots_R)))
        if graph is not None:
            recorded, result = graph
            recorded.replay()
            return result
        result = step(slots_R)
        if self._can_record and (name, len(slots_R)) not in self._graphs:
            self._record(name, slots_R, step)
        return result

    def prepare(self, size: int, name: str, step: StepFunction) -> bool:
        """Record a step before one is needed; False: it cannot be.

        It runs on padding all the same, as others may wait there for this rank.
        """
        if self._graphs.get((name, size)) is None:
            padding = np.full(size, self._padding_slot, np.intp)
            self.run(self.place(padding, size, 0), name, step)
        return self._graphs.get((name, size)) is not None

    def forget(self) -> None:
        """Drop all recordings; steps will be recorded anew."""
        self._graphs.clear()
        self._pool = torch.cuda.graph_pool_handle()  # the old one ends with its last recording

    def _record(self, name: str, slots_R: Tensor, step: StepFunction) -> None:
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
            self._graphs[name, size] = None
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
        self._graphs[name, size] = graph, result
        milliseconds = (time.monotonic() - start) * 1e3
        log.debug("recorded %s for %d rows in %.1f ms", name, size, milliseconds)
