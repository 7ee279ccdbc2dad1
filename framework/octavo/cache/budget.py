"""The pool's size by arithmetic: no trial forward, and an error that says what to change."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.cache.groups import CacheLayout
from octavo.config import EngineConfig
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
    if cache.num_blocks is not None:
        num_blocks = cache.num_blocks
    elif cache.kv_cache_memory_gib is not None:
        num_blocks = int(cache.kv_cache_memory_gib * GIB) // layout.page_bytes
    elif memory.is_host:
        budget = min(int(HOST_POOL_GIB * GIB), int((memory.free - workspace) * HOST_SHARE))
        num_blocks = min(1 + one * num_slots, max(budget, 0) // layout.page_bytes)
    else:
        used_by_others = memory.total - memory.free
        budget = int(memory.total * cache.gpu_memory_utilization) - used_by_others - workspace
        num_blocks = max(budget, 0) // layout.page_bytes
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
    num_swap_blocks = int(cache.swap_gib * GIB) // layout.page_bytes if swap else 0
    return PoolSize(
        num_blocks=num_blocks,
        num_swap_blocks=min(num_swap_blocks, num_blocks * 4),
        max_model_len=max_model_len,
    )
