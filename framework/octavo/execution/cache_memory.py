"""The pool's bytes on the device, its swap space on the host, and the copies between blocks."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.cache.groups import CacheLayout
from octavo.errors import CacheError
from octavo.execution.state_memory import StateMemory
from octavo.execution.untouched import untouched_zeros
from octavo.steps.loads import BlockMoves
from octavo_kernels.block_moves import copy_blocks_, swap_blocks_
from octavo_registry.attention import AttentionBackend
from octavo_registry.step import LayerCache


class CacheMemory:
    """Pages as [lanes, blocks, lane bytes]: whatever a backend keeps in a block, it is bytes."""

    def __init__(
        self,
        layout: CacheLayout,
        num_blocks: int,
        num_swap_blocks: int,
        device: torch.device,
        states: StateMemory | None = None,
    ) -> None:
        self.states = states
        """Lines of recurrent state, beside the pages."""
        lanes, lane_bytes = layout.num_lanes, layout.lane_bytes
        pinned = device.type == "cuda" and num_swap_blocks > 0
        try:
            shape = (lanes, num_blocks, lane_bytes)
            self.pages = (
                untouched_zeros(shape)
                if device.type == "cpu"
                else torch.zeros(shape, dtype=torch.uint8, device=device)
            )
            shape = (lanes, num_swap_blocks, lane_bytes)
            self.swap = (
                torch.zeros(shape, dtype=torch.uint8, pin_memory=True)
                if pinned
                else untouched_zeros(shape)
            )
        # torch's allocators have no class of their own
        except (RuntimeError, OSError, OverflowError) as error:
            raise CacheError(
                f"{num_blocks} blocks of {layout.page_bytes} bytes on {device} and "
                f"{num_swap_blocks} on the host cannot be allocated; lower num_blocks, "
                "kv_cache_memory_gib, block_size or swap_gib"
            ) from error

    def layer_caches(
        self, layout: CacheLayout, backends: list[AttentionBackend | None]
    ) -> dict[str, LayerCache]:
        """Each layer's view of its lane, by layer name; ``backends`` are by group, None where this
        rank holds no layer of it."""
        caches = {}
        for index, (group, backend) in enumerate(zip(layout.groups, backends, strict=True)):
            if backend is None:
                continue
            if group.spec.kind == "media":  # in all lanes
                row_bytes = backend.page_bytes(group.spec, 1)
                num_bytes = group.block_tokens // layout.num_lanes * row_bytes
                view = backend.views(self.pages[:, :, :num_bytes], group.spec, group.block_tokens)
                caches[group.layers[0]] = LayerCache(backend=backend, view=view, group=index)
                continue
            page_bytes = backend.page_bytes(group.spec, layout.block_tokens)
            for lane, name in enumerate(group.layers):
                pages = self.pages[lane, :, :page_bytes]
                view = backend.views(pages, group.spec, layout.block_tokens)
                caches[name] = LayerCache(backend=backend, view=view, group=index)
        return caches

    def move(self, moves: BlockMoves) -> None:
        """Do a step's block copies, before anything of the step reads or writes the cache."""
        if moves.swap_out:
            blocks, swaps = self._columns(moves.swap_out)
            swap_blocks_(self.pages, self.swap, blocks, swaps)
        if moves.swap_in:
            swaps, blocks = self._columns(moves.swap_in)
            swap_blocks_(self.swap, self.pages, swaps, blocks)
        if moves.copy:
            sources, targets = self._columns(moves.copy)
            copy_blocks_(self.pages, sources, targets)
        if moves.lines and self.states is not None:
            self.states.move(moves.lines)

    def _columns(self, pairs: list[tuple[int, int]]) -> tuple[Tensor, Tensor]:
        """Both sides of the moves on the device; from pinned memory, so that nothing waits."""
        device = self.pages.device
        columns = torch.tensor(
            list(zip(*pairs, strict=True)), dtype=torch.int64, pin_memory=device.type == "cuda"
        )
        first, second = columns.to(device, non_blocking=True).unbind(0)
        return first, second
