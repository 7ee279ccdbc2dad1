"""What the ranks of one engine agree on: of each fact the least that all of them have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from octavo.cache.budget import GIB, DeviceMemory, size_pool
from octavo.cache.groups import CacheLayout, make_layout
from octavo.cache.state_lines import NUM_RESERVED
from octavo.config import EngineConfig
from octavo.errors import CacheError, ConfigError
from octavo.messages import AdapterFacts
from octavo.steps.layout import StateLayout
from octavo_registry.cache import CacheSpec
from octavo_registry.executor import ExecutorFacts
from octavo_registry.ranks import Ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFacts:
    """What a worker has once its weights are loaded, before it takes memory for the cache."""

    ranks: Ranks
    memory: DeviceMemory
    workspace_bytes: int
    num_slots: int
    """Sequences that may run at the same time."""
    specs: Mapping[str, CacheSpec]
    """The cache of each layer that lives here, by name and in the order of layers."""
    page_bytes: Mapping[CacheSpec, int]
    """Bytes of one layer's block."""
    most_recorded_queries: int
    """Tokens of a row that all its attention backends take in a recording; 0: no recording."""
    masks_on_device: bool
    max_step_tokens: int | None = None
    """Tokens that a step of whole texts has at most; None: the model writes."""
    adapters: AdapterFacts | None = None


def agree(facts: Sequence[RankFacts], config: EngineConfig, *, max_model_len: int) -> ExecutorFacts:
    """One cache layout of the whole model, of which each rank holds its layers' part; of blocks,
    context and slots the fewest that a rank has room for.

    ``max_model_len`` is the model's limit.
    """
    adapters = facts[0].adapters
    if adapters is not None and len(facts) > 1:
        raise ConfigError("enable_lora: adapters are for one device yet, not for several ranks")
    layout = _layout(facts, config.cache.block_size)
    check_layout(layout, config)
    if facts[0].max_step_tokens is not None:
        return _agree_to_read(facts, layout, max_model_len)
    num_slots = min(each.num_slots for each in facts)
    sizes = []
    for each in facts:
        held = layout.held_by(each.specs)
        try:
            size = size_pool(
                config,
                held,
                memory=each.memory,
                workspace=each.workspace_bytes,
                num_slots=num_slots,
                max_model_len=max_model_len,
                shrink_context=config.model.max_model_len == "auto",
            )
        except CacheError as error:
            raise error if len(facts) == 1 else CacheError(f"{each.ranks}: {error}") from error
        sizes.append(size)
    num_blocks = min(size.num_blocks for size in sizes)
    # A rank without such layers has no lines.
    num_lines = min((size.num_lines for size in sizes if size.num_lines), default=0)
    if layout.lines is not None:  # each sequence that runs has one
        num_slots = min(num_slots, num_lines - NUM_RESERVED)
    for each in facts:
        _check_host_memory(each, layout.held_by(each.specs).num_bytes(num_blocks, num_lines))
    context = min(size.max_model_len for size in sizes)
    return ExecutorFacts(
        layout=layout,
        state=StateLayout(
            num_slots=num_slots,
            max_model_len=context,
            max_blocks=layout.table_blocks(context),
            num_groups=len(layout.groups),
        ),
        num_blocks=num_blocks,
        num_swap_blocks=min(size.num_swap_blocks for size in sizes),
        num_lines=num_lines,
        num_swap_lines=min((size.num_swap_lines for size in sizes if size.num_lines), default=0),
        max_model_len=context,
        adapters=adapters,
        masks_on_device=all(each.masks_on_device for each in facts),
        most_recorded_queries=min(each.most_recorded_queries for each in facts),
    )


def check_layout(layout: CacheLayout, config: EngineConfig) -> None:
    """Refuse options that the whole model's cache cannot keep or has no use for."""
    cache = config.cache
    if layout.lines is None:
        if cache.num_state_lines is not None:
            raise ConfigError("num_state_lines: the model has no recurrent states; leave it out")
        return
    if config.model.batch_invariant:
        raise ConfigError(
            "batch_invariant: recurrent states are computed in pieces of a prompt, which depend on "
            "what else is in the step; leave it out (in float32 tokens are the same in any case)"
        )
    if cache.kv_cache_dtype != "auto" and not layout.groups:
        raise ConfigError("kv_cache_dtype: the model keeps no keys and values; leave it out")


def _agree_to_read(
    facts: Sequence[RankFacts], layout: CacheLayout, max_model_len: int
) -> ExecutorFacts:
    """What a model takes that reads whole texts and keeps nothing."""
    for each in facts:
        if each.workspace_bytes > each.memory.free:
            raise CacheError(
                f"{each.ranks}: a step takes {each.workspace_bytes / GIB:.3g} GiB, and "
                f"{each.memory.free / GIB:.3g} GiB are free beside the weights; lower "
                "max_num_batched_tokens or max_model_len"
            )
    return ExecutorFacts(
        layout=layout,
        state=None,
        num_blocks=0,
        num_swap_blocks=0,
        max_model_len=max_model_len,
        max_step_tokens=facts[0].max_step_tokens,
    )


def _layout(facts: Sequence[RankFacts], block_tokens: int) -> CacheLayout:
    """How a page of the whole model is cut: by the layers of all stages, in their order."""
    specs: dict[str, CacheSpec] = {}
    page_bytes: dict[CacheSpec, int] = {}
    by_stage: dict[int, RankFacts] = {}
    for each in sorted(facts, key=lambda each: (each.ranks.stage, each.ranks.tp_rank)):
        first = by_stage.setdefault(each.ranks.stage, each)
        if list(each.specs.items()) != list(first.specs.items()):
            raise CacheError(
                f"{each.ranks} has other cached layers than {first.ranks}; all ranks of a stage "
                "must choose their attention alike"
            )
        specs.update(each.specs)
        for spec, num_bytes in each.page_bytes.items():
            page_bytes[spec] = max(num_bytes, page_bytes.get(spec, 0))
    return make_layout(specs, page_bytes.__getitem__, block_tokens)


def _check_host_memory(facts: RankFacts, cache_bytes: int) -> None:
    """Pages of main memory are taken when they are written: the process would end amid requests."""
    memory = facts.memory
    if memory.is_host and cache_bytes > memory.free:
        raise CacheError(
            f"the KV cache of {cache_bytes / GIB:.3g} GiB is more than "
            f"the {memory.free / GIB:.3g} GiB of memory that are free; lower kv_cache_memory_gib "
            "or num_blocks, or end other programs"
        )
