"""Whether a model fits a device, and how much of it, before a byte of its weights is read.

The model is built on the meta device, where tensors have shapes and no memory; what the engine does
at load to size its cache is then done with that. So, on a device of ``total`` bytes::

    usable   = total * gpu_memory_utilization - what others use
    KV cache = usable - weights - workspace      (as many pages as that holds)

where workspace is that of ``octavo.execution.workspace``, and the tokens of each row. On a CPU the
cache takes at most half of what is left, and no more than all rows can use.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, cast

import torch
from torch import Tensor, nn

from octavo.cache.budget import GIB, DeviceMemory, size_pool
from octavo.cache.groups import CacheLayout
from octavo.cache.state_lines import NUM_RESERVED
from octavo.config import CacheConfig, EngineConfig
from octavo.errors import CacheError, ConfigError, ModelError
from octavo.execution.agreement import check_layout
from octavo.execution.plan_target import CONTEXT_BYTES, CPU_NAME, Target, find_target
from octavo.execution.sizing import Sizing, adapter_rows, cache_choice, size_engine
from octavo.layers.unquantized import UnquantizedLinear, is_packed_on
from octavo.model_folder import ModelFolder, open_model
from octavo.weights.checkpoint import open_checkpoint
from octavo.weights.load import build_model, finish_layers
from octavo_registry import PluginHost
from octavo_registry.cache import CacheKind
from octavo_registry.model import Model
from octavo_registry.ranks import Ranks

MAX_UTILIZATION: Final = 0.97
FEWER_STEP_TOKENS: Final = 2048
FEWER_ROWS: Final = 64
MIN_USEFUL_CONTEXT: Final = 512
DEVICE_STEP_GIB: Final = 4
SMALL_DEVICE_GIB: Final = 16
"""Up to here devices, and shares of them, differ by single gibibytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Bytes by what they are for, and what they allow."""

    architecture: str
    dtype: str
    num_parameters: int
    file_bytes: int | None
    """Tensors of the checkpoint by its headers; None: it is not on this machine."""
    device: str
    """That, and all bytes here, are of one of the devices of a tensor parallel group."""
    usable_bytes: int
    weight_bytes: int
    """With the pool of adapters, where there is one."""
    adapter_bytes: int = 0
    """What that pool takes."""
    workspace_bytes: int
    cache_bytes: int = 0
    """What the KV cache takes, with recurrent states; 0 if nothing is left for it."""
    bytes_per_token: int = 0
    """What one more token takes in the layers that keep every token."""
    window_bytes_per_sequence: int = 0
    """Most that the layers with a window take, for a sequence longer than it."""
    cross_bytes_per_sequence: int = 0
    """What layers take that read the rows of an encoder, whatever a sequence's length."""
    state_bytes_per_sequence: int = 0
    """What layers take that have a recurrent state, whatever a sequence's length."""
    num_state_lines: int = 0
    """Such states in memory: of sequences that run, and of prefixes that are kept."""
    num_blocks: int = 0
    block_tokens: int = 0
    block_bytes: int = 0
    """Over all layers."""
    blocks_per_sequence: int = 0
    """Most that a sequence of ``max_model_len`` holds at a time."""
    max_num_seqs: int = 0
    max_model_len: int
    """Tokens of prompt and output together, as asked for or as the model allows; what the cache
    allows where that was asked for."""
    largest_context: int
    """What one sequence can have at most; 0 if not even one block is left."""
    concurrency: float = 0.0
    """Sequences of ``max_model_len`` that are in memory at a time."""
    reads: str | None = None
    """How texts become vectors, of a model that keeps nothing between steps; None: it writes."""
    problem: str | None = None
    """Why the model does not start so; None: it fits."""
    change: str | None = None
    """The one change that makes it fit."""


class _NoCollectives:
    """For a rank that is built and never run: each of several equal devices is planned for."""

    def all_reduce(self, x: Tensor) -> Tensor:
        """Nothing calls it."""
        raise NotImplementedError

    def all_gather(self, x: Tensor) -> Tensor:
        """Nothing calls it."""
        raise NotImplementedError


def budget_of(config: EngineConfig, host: PluginHost, memory_gib: float | None = None) -> Budget:
    """Add up what the engine would take, and where that is too much find what to change."""
    budget = _budget(config, host, memory_gib)
    if budget.problem is None:
        return budget
    for text, changed, gib in _changes(config, budget, memory_gib):
        try:
            if _budget(changed, host, gib).problem is None:
                return replace(budget, change=text)
        except ConfigError:
            continue  # no attention backend takes it
    return replace(budget, change=f"a machine with {_least_gib(config, budget)} GiB to spare")


def weight_bytes(model: nn.Module, target: Target) -> int:
    """Bytes of all parameters and buffers once loaded; a shared one counts once.

    Except where layers pack their weights into copies: those are shared no more.
    """
    tensors = {id(t): t for t in (*model.parameters(), *model.buffers())}
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    seen: set[int] = set()
    for module in model.modules():
        method = getattr(module, "method", None)
        unquantized = isinstance(getattr(method, "inner", method), UnquantizedLinear)
        for parameter in module.parameters(recurse=False):
            packed = unquantized and is_packed_on(target.device, parameter.dtype)
            if id(parameter) in seen and packed and target.memory is None:
                total += parameter.numel() * parameter.element_size()
            seen.add(id(parameter))
    return total


def _budget(config: EngineConfig, host: PluginHost, memory_gib: float | None) -> Budget:
    if config.parallel.pipeline_parallel_size > 1:
        raise ConfigError(
            f"pipeline_parallel_size={config.parallel.pipeline_parallel_size}: the parts of a "
            "pipeline differ and are not planned for; leave it out, and divide the weights"
        )
    folder = open_model(config.model, host, weights=False)
    folder.check_parallel(config.parallel)
    num_devices = config.parallel.tensor_parallel_size
    adapters = adapter_rows(config)
    target = find_target(config, memory_gib)
    model = build_model(
        folder,
        host,
        config=config.model,
        device=torch.device("meta"),
        ranks=Ranks(tp_size=num_devices, collectives=_NoCollectives() if num_devices > 1 else None),
        adapters=adapters,
        takes_cache=cache_choice(config, folder, host, target.device),
    ).eval()
    finish_layers(model)  # what quantizations make of what they load
    sizing = size_engine(
        cast(Model, model),
        config,
        folder,
        host,
        device=target.device,
        slots_of=target.slots_of,
        adapters=adapters,
    )
    layout, weights = sizing.layout, weight_bytes(model, target)
    if folder.pooling is not None:
        needed, available = weights + sizing.workspace_bytes, target.available_bytes
        return Budget(
            architecture=folder.architecture,
            dtype=folder.dtype,
            num_parameters=sum(parameter.numel() for parameter in model.parameters()),
            file_bytes=_file_bytes(folder),
            device=target.name,
            usable_bytes=available,
            weight_bytes=weights,
            workspace_bytes=sizing.workspace_bytes,
            max_model_len=folder.max_model_len,
            largest_context=folder.max_model_len,
            reads=str(folder.pooling),
            problem=f"{_gib(needed)} are needed, but of memory {_gib(available)} are free"
            if needed > available
            else None,
        )
    check_layout(layout, config)
    pool = _pool(config, folder, sizing, layout, target, weights)
    is_shrunk = config.model.max_model_len == "auto" and pool.problem is None
    max_model_len = pool.context if is_shrunk else folder.max_model_len
    num_slots, num_states = sizing.num_slots, max(pool.num_lines - NUM_RESERVED, 0)
    if layout.lines is not None:
        num_slots = min(num_slots, num_states)
    lookahead = config.scheduler.max_num_batched_tokens * (config.scheduler.async_depth + 1)
    one = layout.blocks_for(max_model_len, lookahead)
    full_groups = sum(group.spec.kind in ("full", "latent") for group in layout.groups)
    return Budget(
        architecture=folder.architecture,
        dtype=folder.dtype,
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        file_bytes=_file_bytes(folder),
        device=target.name,
        usable_bytes=target.available_bytes,
        weight_bytes=weights,
        adapter_bytes=0 if adapters is None else adapters.num_bytes,
        workspace_bytes=sizing.workspace_bytes,
        cache_bytes=layout.num_bytes(pool.num_blocks, pool.num_lines),
        bytes_per_token=full_groups * layout.page_bytes // layout.block_tokens,
        window_bytes_per_sequence=_bytes_of(layout, ("window",), max_model_len, lookahead),
        cross_bytes_per_sequence=_bytes_of(layout, ("cross", "media"), max_model_len, lookahead),
        state_bytes_per_sequence=0 if layout.lines is None else layout.lines.line_bytes,
        num_state_lines=num_states,
        num_blocks=pool.num_blocks,
        block_tokens=layout.block_tokens,
        block_bytes=layout.page_bytes,
        blocks_per_sequence=one,
        max_num_seqs=num_slots,
        max_model_len=max_model_len,
        largest_context=pool.context,
        concurrency=min(max(pool.num_blocks - 1, 0) / one if one else num_slots, num_slots),
        problem=pool.problem,
    )


class _Pool(NamedTuple):
    num_blocks: int
    num_lines: int
    context: int
    """The largest that there is room for."""
    problem: str | None


def _pool(
    config: EngineConfig,
    folder: ModelFolder,
    sizing: Sizing,
    layout: CacheLayout,
    target: Target,
    weights: int,
) -> _Pool:
    """What there is room for, and what is wrong; by the engine's own arithmetic."""
    if weights > target.available_bytes:
        available = _gib(target.available_bytes)
        return _Pool(0, 0, 0, f"the weights alone are above the {available} to be had")
    if target.memory is None:
        memory = DeviceMemory.of_host(target.available_bytes - weights)
    else:
        free = max(target.memory.free - weights, 0)
        memory = DeviceMemory(total=target.memory.total, free=free)

    try:
        size = size_pool(
            config,
            layout,
            memory=memory,
            workspace=sizing.workspace_bytes,
            num_slots=sizing.num_slots,
            max_model_len=folder.max_model_len,
            shrink_context=True,
        )
    except CacheError:
        what = "weights and workspace leave no room for a single block of the KV cache"
        if _is_given(config.cache):
            what = "the KV cache that is asked for does not hold a sequence of one block"
        return _Pool(0, 0, 0, what)
    problem = None
    cache_bytes = layout.num_bytes(size.num_blocks, size.num_lines)
    needed = weights + sizing.workspace_bytes + cache_bytes
    if needed > target.available_bytes:
        available = _gib(target.available_bytes)
        problem = f"{_gib(needed)} are needed, but of memory {available} are free"
    elif size.max_model_len < folder.max_model_len and config.model.max_model_len != "auto":
        problem = f"one sequence of {folder.max_model_len} tokens is more than the KV cache holds"
    return _Pool(size.num_blocks, size.num_lines, size.max_model_len, problem)


def _changes(
    config: EngineConfig, budget: Budget, memory_gib: float | None
) -> Iterator[tuple[str, EngineConfig, float | None]]:
    """Things to try, the least painful first."""
    model, cache, scheduler = config.model, config.cache, config.scheduler
    on_cpu = budget.device.startswith(CPU_NAME)
    if budget.reads is None and (on_cpu or _is_given(cache)):
        pool = _pool_change(config, budget)
        if pool is not None:
            yield *pool, memory_gib
    most = replace(config, cache=replace(cache, gpu_memory_utilization=MAX_UTILIZATION))
    if not on_cpu and cache.gpu_memory_utilization < MAX_UTILIZATION:
        yield f"--gpu-memory-utilization {MAX_UTILIZATION}", most, memory_gib
    context = budget.largest_context
    shorter = replace(config, model=replace(model, max_model_len=max(context, 1)))
    if budget.max_model_len > context >= budget.max_model_len // 4:
        yield f"--max-model-len {context}", shorter, memory_gib
    if scheduler.max_num_batched_tokens > FEWER_STEP_TOKENS:
        fewer = replace(scheduler, max_num_batched_tokens=FEWER_STEP_TOKENS)
        text = f"--max-num-batched-tokens {FEWER_STEP_TOKENS}"
        yield text, replace(config, scheduler=fewer), memory_gib
    if budget.max_num_seqs > FEWER_ROWS:
        fewer = replace(scheduler, max_num_seqs=FEWER_ROWS)
        yield f"--max-num-seqs {FEWER_ROWS}", replace(config, scheduler=fewer), memory_gib
    if budget.max_model_len > context >= MIN_USEFUL_CONTEXT:
        yield f"--max-model-len {context}", shorter, memory_gib
    if budget.dtype == "float32":
        yield (
            "--dtype bfloat16",
            replace(config, model=replace(model, dtype="bfloat16")),
            memory_gib,
        )
    if not on_cpu:
        needed = _least_gib(config, budget)
        yield f"a device of {needed} GiB or more", config, float(needed)


def _is_given(cache: CacheConfig) -> bool:
    """Whether the pool has a size of its own, whatever the device's memory."""
    return cache.num_blocks is not None or cache.kv_cache_memory_gib is not None


def _pool_change(config: EngineConfig, budget: Budget) -> tuple[str, EngineConfig] | None:
    """Instead of a pool that is too large one that memory has room for and rows can fill; instead
    of one that is too small, one that holds a sequence, cut short if need be."""
    if not budget.block_bytes:  # there are states alone
        return None
    room = budget.usable_bytes - budget.weight_bytes - budget.workspace_bytes
    most, least = room // budget.block_bytes, budget.blocks_per_sequence + 1
    if most < 2:
        return None
    num_blocks = min(most, least)
    if budget.num_blocks > most:
        num_blocks = min(most, 1 + budget.blocks_per_sequence * budget.max_num_seqs)
    if config.cache.num_blocks is not None:
        text = f"--num-blocks {num_blocks}"
        cache = replace(config.cache, num_blocks=num_blocks)
    else:
        rounded = math.floor if num_blocks == most else math.ceil
        gib = rounded(num_blocks * budget.block_bytes / GIB * 1000) / 1000
        text = f"--kv-cache-memory-gib {gib:.10g}"
        cache = replace(config.cache, kv_cache_memory_gib=gib)
    changed = replace(config, cache=cache)
    if num_blocks < least:
        text += " --max-model-len auto"
        changed = replace(changed, model=replace(config.model, max_model_len="auto"))
    return text, changed


def _least_gib(config: EngineConfig, budget: Budget) -> int:
    """A device that holds what is asked for, at least one sequence, and a margin for rounding."""
    cache = config.cache
    asked_bytes = int((cache.kv_cache_memory_gib or 0) * GIB)
    if cache.num_blocks is not None:
        asked_bytes = cache.num_blocks * budget.block_bytes
    bytes_used = (
        budget.weight_bytes
        + budget.workspace_bytes
        + max((budget.blocks_per_sequence + 2) * budget.block_bytes, asked_bytes)
        + (NUM_RESERVED + 1) * budget.state_bytes_per_sequence
        + CONTEXT_BYTES
    )
    gib = bytes_used / cache.gpu_memory_utilization / GIB * 1.01
    step = DEVICE_STEP_GIB if gib > SMALL_DEVICE_GIB else 1
    return (int(gib) // step + 1) * step


def _bytes_of(
    layout: CacheLayout, kinds: tuple[CacheKind, ...], num_tokens: int, lookahead: int
) -> int:
    """Most that the layers of these kinds take for a sequence."""
    groups = tuple(group for group in layout.groups if group.spec.kind in kinds)
    return replace(layout, groups=groups).blocks_for(num_tokens, lookahead) * layout.page_bytes


def _file_bytes(folder: ModelFolder) -> int | None:
    try:
        files = open_checkpoint(folder.path).files
    except ModelError:
        return None
    return sum(entry.end - entry.begin for entries in files.values() for entry in entries)


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.2f} GiB"
