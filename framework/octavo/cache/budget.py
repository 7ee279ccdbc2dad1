"""The pool's size by arithmetic: no trial forward, and an error that says what to change."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.cache.groups import CacheLayout
from octavo.cache.state_lines import NUM_RESERVED
from octavo.config import CacheConfig, EngineConfig
from octavo.errors import CacheError

GIB = 1024**3
HOST_POOL_GIB = 4.0
HOST_SHARE = 0.5
"""Part of the main memory that is free which a pool may take: other programs want some, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """Bytes of a device once the weights are on it."""

    total: int
    free: int
    is_host: bool = False
    """Whether it is main memory, of which other programs want a part."""

    @classmethod
    def of_host(cls, free: int) -> DeviceMemory:
        """Main memory, for models that run on a CPU."""
        return cls(total=free, free=free, is_host=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSize:
    """Blocks on the device and on the host, and the context that the former allow."""

    num_blocks: int
    num_swap_blocks: int
    max_model_len: int
    num_lines: int = 0
    """Lines of recurrent state, the reserved ones among them."""
    num_swap_lines: int = 0


def size_pool(
    config: EngineConfig,
    layout: CacheLayout,
    *,
    memory: DeviceMemory,
    workspace: int,
    num_slots: int,
    max_model_len: int,
    shrink_context: bool,
) -> PoolSize:
    """Blocks that memory allows; of main memory no more than all rows can use.

    One sequence of ``max_model_len`` must fit; with ``shrink_context`` the context is lowered
    until it does.
    """
    cache, scheduler = config.cache, config.scheduler
    lookahead = scheduler.max_num_batched_tokens * (scheduler.async_depth + 1)
    one = layout.blocks_for(max_model_len, lookahead)
    budget = _budget(cache, memory, workspace)
    num_lines = 0 if layout.lines is None else _num_lines(cache, layout, budget, num_slots)
    line_bytes = 0 if layout.lines is None else layout.lines.line_bytes
    budget = max(budget - num_lines * line_bytes, 0)
    if not layout.groups:
        num_blocks = 1  # the one that is never given out
    elif cache.num_blocks is not None:
        num_blocks = cache.num_blocks
    else:
        num_blocks = budget // layout.page_bytes
        if memory.is_host and cache.kv_cache_memory_gib is None:
            num_blocks = min(1 + one * num_slots, num_blocks)
    if shrink_context:
        while max_model_len > layout.block_tokens and one > num_blocks - 1:
            max_model_len -= layout.block_tokens
            one = layout.blocks_for(max_model_len, lookahead)
    if one > num_blocks - 1:
        have = num_blocks * layout.page_bytes / GIB
        need = (one + 1) * layout.page_bytes / GIB
        raise CacheError(
            f"the KV cache gets {have:.3g} GiB ({num_blocks} blocks), but one sequence of "
            f"max_model_len={max_model_len} tokens needs {need:.3g} GiB ({one + 1} blocks); lower "
            "max_model_len (or set it to 'auto'), or raise gpu_memory_utilization, "
            "kv_cache_memory_gib or num_blocks"
        )
    swap = scheduler.preemption_mode == "swap"
    swap_bytes, num_swap_lines = int(cache.swap_gib * GIB) if swap else 0, 0
    if line_bytes:
        num_swap_lines = min(swap_bytes // 2 // line_bytes, num_slots)
        swap_bytes -= num_swap_lines * line_bytes
    num_swap_blocks = swap_bytes // layout.page_bytes if layout.groups else 0
    return PoolSize(
        num_blocks=num_blocks,
        num_swap_blocks=min(num_swap_blocks, num_blocks * 4),
        max_model_len=max_model_len,
        num_lines=num_lines,
        num_swap_lines=num_swap_lines,
    )


def _budget(cache: CacheConfig, memory: DeviceMemory, workspace: int) -> int:
    """Bytes for blocks and lines together."""
    if cache.kv_cache_memory_gib is not None:
        return int(cache.kv_cache_memory_gib * GIB)
    if memory.is_host:
        return min(int(HOST_POOL_GIB * GIB), int((memory.free - workspace) * HOST_SHARE))
    used_by_others = memory.total - memory.free
    return int(memory.total * cache.gpu_memory_utilization) - used_by_others - workspace


def _num_lines(cache: CacheConfig, layout: CacheLayout, budget: int, num_slots: int) -> int:
    """Lines, of which half are for checkpoints; they leave half of the memory to blocks."""
    line_bytes = 0 if layout.lines is None else layout.lines.line_bytes
    if cache.num_state_lines is not None:
        return NUM_RESERVED + cache.num_state_lines
    share = max(budget, 0) // (2 if layout.groups else 1)
    num_lines = min(NUM_RESERVED + 2 * num_slots, share // line_bytes)
    if num_lines <= NUM_RESERVED:
        raise CacheError(
            f"a sequence's recurrent states take {line_bytes / GIB:.3g} GiB, and {share / GIB:.3g} "
            f"GiB are for {NUM_RESERVED + 1} of them at least; raise gpu_memory_utilization or "
            "kv_cache_memory_gib"
        )
    return num_lines
