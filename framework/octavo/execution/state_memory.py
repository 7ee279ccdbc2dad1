"""Lines of recurrent state on the device, their copies, and what a step's layers read of them.

Axis suffixes: N lines, R rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from octavo.cache.line_layout import LineLayout
from octavo.errors import CacheError
from octavo.execution.untouched import untouched_zeros
from octavo.steps.device_state import DeviceState
from octavo.steps.loads import LineMove
from octavo.steps.uploads import upload
from octavo_kernels.block_moves import swap_blocks_
from octavo_registry.cache import StateTensor
from octavo_registry.step import StateStep, StateView, StepBounds


class StateMemory:
    """Each line is one stretch of bytes: first the number of tokens whose effect its state has."""

    def __init__(
        self, layout: LineLayout, num_lines: int, num_swap_lines: int, device: torch.device
    ) -> None:
        on_cuda = device.type == "cuda"
        try:
            self._lines = _zeros((num_lines, layout.line_bytes), device)
            self._swap = (
                torch.zeros(num_swap_lines, layout.line_bytes, dtype=torch.uint8, pin_memory=True)
                if on_cuda and num_swap_lines
                else untouched_zeros((num_swap_lines, layout.line_bytes))
            )
        # torch's allocators have no class of their own
        except (RuntimeError, OSError, OverflowError) as error:
            raise CacheError(
                f"{num_lines} lines of recurrent state of {layout.line_bytes} bytes on {device} "
                f"and {num_swap_lines} on the host cannot be allocated; lower num_state_lines, "
                "max_num_seqs or swap_gib"
            ) from error
        self._num_logged = layout.num_logged
        self._position_N = self._lines[:, :4].view(torch.int32).squeeze(1)
        self.views = {
            name: StateView(
                tensors=tuple(self._view(offset, each) for offset, each in layer.tensors),
                log=tuple(
                    self._view(offset, each, layout.num_logged) for offset, each in layer.log
                ),
            )
            for name, layer in layout.layers.items()
        }

    def move(self, moves: Iterable[LineMove]) -> None:
        """Do a step's copies of lines as if one after the other; they take no memory."""
        for kind, several in groupby(moves, key=lambda move: move.kind):
            source = self._swap if kind == "swap_in" else self._lines
            target = self._swap if kind == "swap_out" else self._lines
            for batch in _independent(several, in_one_place=kind == "copy"):
                columns = np.array([[*batch.values()], [*batch]], np.int64)
                swap_blocks_(source[None], target[None], *upload(columns, self._lines.device))

    def begin(
        self,
        state: DeviceState,
        slots_R: Tensor,
        token_rows_T: Tensor,
        query_starts_R1: Tensor,
        bounds: StepBounds,
    ) -> StateStep:
        """What the layers of a step share; from now on its lines are those behind it."""
        lines_R = state["state_line"].index_select(0, slots_R)
        computed_R = state["computed"].index_select(0, slots_R)
        position_R = self._position_N.index_select(0, lines_R)
        num_logged_R = (computed_R - position_R).clamp_(0, self._num_logged)
        final_R = (query_starts_R1.diff() - self._num_logged).clamp_(min=0)
        self._position_N.index_copy_(0, lines_R.long(), computed_R + final_R)
        return StateStep(
            query_starts_R1=query_starts_R1,
            token_rows_T=token_rows_T,
            lines_R=lines_R,
            num_logged_R=num_logged_R,
            num_final_R=final_R,
            bounds=bounds,
        )

    def _view(self, offset: int, each: StateTensor, *entries: int) -> Tensor:
        num_bytes = each.num_bytes
        for number in entries:
            num_bytes *= number
        flat = self._lines[:, offset : offset + num_bytes].view(getattr(torch, each.dtype))
        return flat.view(len(self._lines), *entries, *each.shape)


def _independent(moves: Iterable[LineMove], *, in_one_place: bool) -> Iterable[dict[int, int]]:
    """Sources by target, cut so that all of a part may be read before any of it is written."""
    batch: dict[int, int] = {}
    for _, source, target in moves:
        if target in batch or (in_one_place and source in batch):
            yield batch
            batch = {}
        batch[target] = source
    if batch:
        yield batch


def _zeros(shape: tuple[int, int], device: torch.device) -> Tensor:
    if device.type == "cpu":
        return untouched_zeros(shape)
    return torch.zeros(shape, dtype=torch.uint8, device=device)
