"""Ranks of unequal memory and layers agree on one cache; those of a real model run by it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from octavo.cache.budget import GIB, DeviceMemory
from octavo.config import CacheConfig, EngineConfig, ModelConfig, ParallelConfig, SchedulerConfig
from octavo.engine.core import EngineCore
from octavo.errors import CacheError, ConfigError
from octavo.execution.agreement import RankFacts, agree
from octavo.execution.memory_budget import budget_of
from octavo.execution.worker import Worker
from octavo.messages import AdapterFacts, EngineRequest, TokenSampling
from octavo.model_folder import open_model
from octavo.testing.random_model import make_random_model
from octavo_registry import PluginHost
from octavo_registry.cache import CacheSpec
from octavo_registry.executor import ExecutorFacts
from octavo_registry.ranks import Ranks
from thread_ranks import ThreadRanksPlugin

FULL = CacheSpec.full(kv_heads=8, head_dim=128, dtype="bfloat16")
WINDOW = CacheSpec.sliding(kv_heads=8, head_dim=128, dtype="bfloat16", window=1024)
PAGE = 65_536  # bytes of a layer's block


def facts(
    *layers: CacheSpec, first: int = 0, free: float = 70, page: int = PAGE, **changes: Any
) -> RankFacts:
    given = {
        "ranks": Ranks(),
        "memory": DeviceMemory(total=100 * GIB, free=int(free * GIB)),
        "workspace_bytes": 0,
        "num_slots": 64,
        "specs": {str(first + i): spec for i, spec in enumerate(layers)},
        "page_bytes": dict.fromkeys(layers, page),
        "most_recorded_queries": 1,
        "masks_on_device": True,
        **changes,
    }
    return RankFacts(**given)


def two(first: RankFacts, second: RankFacts) -> list[RankFacts]:
    """As ranks of one stage."""
    return [
        replace(each, ranks=Ranks(tp_rank=i, tp_size=2)) for i, each in enumerate((first, second))
    ]


def stages(*each: RankFacts) -> list[RankFacts]:
    return [replace(one, ranks=Ranks(stage=i, num_stages=len(each))) for i, one in enumerate(each)]


def config_of(*, length: int | str = 4096, swap_gib: float = 0, **cache: Any) -> EngineConfig:
    mode = "swap" if swap_gib else "recompute"
    return EngineConfig(
        model=ModelConfig(model="m", max_model_len=length),
        cache=CacheConfig(gpu_memory_utilization=0.9, swap_gib=swap_gib, **cache),
        scheduler=SchedulerConfig(preemption_mode=mode),
    )


def agreed(found: list[RankFacts], *, limit: int = 4096, **options: Any) -> ExecutorFacts:
    return agree(found, config_of(**options), max_model_len=limit)


def test_the_rank_with_the_least_memory_says_how_many_blocks_there_are() -> None:
    layers = [FULL] * 32
    found = agreed(two(facts(*layers, free=70), facts(*layers, free=50, workspace_bytes=GIB)))
    assert found.num_blocks == (90 - 50 - 1) * GIB // (32 * PAGE)
    turned = agreed(two(facts(*layers, free=50, workspace_bytes=GIB), facts(*layers)))
    assert (turned.num_blocks, turned.layout) == (found.num_blocks, found.layout)


def test_the_least_of_slots_recorded_queries_and_masks_is_what_all_have() -> None:
    found = agreed(
        two(
            facts(FULL, num_slots=64, most_recorded_queries=0),
            facts(FULL, num_slots=48, masks_on_device=False, most_recorded_queries=4),
        )
    )
    assert found.state.num_slots == 48
    assert found.most_recorded_queries == 0
    assert not found.masks_on_device


def test_the_context_shrinks_to_what_the_smallest_rank_holds() -> None:
    layers = [FULL] * 32
    free = 10 + 101 * 32 * PAGE / GIB  # 100 blocks, and the one that padding writes to
    found = agreed(two(facts(*layers), facts(*layers, free=free)), limit=131_072, length="auto")
    assert found.num_blocks == 101
    assert found.max_model_len == found.state.max_model_len == 100 * 16


def test_a_rank_without_room_is_named() -> None:
    layers = [FULL] * 32
    with pytest.raises(CacheError, match=r"^rank 1 of stage 0: the KV cache gets 0 GiB"):
        agreed(two(facts(*layers), facts(*layers, free=2)))
    with pytest.raises(CacheError, match=r"^the KV cache gets 0 GiB"):
        agreed([facts(*layers, free=2)])


def test_stages_of_unequal_length_have_pages_of_their_own_size_and_as_many_of_them() -> None:
    long, short = facts(*[FULL] * 24), facts(*[FULL] * 8, first=24)
    found = agreed(stages(long, short), swap_gib=1)
    assert found.layout.num_lanes == 32
    first, second = (found.layout.held_by(each.specs) for each in (long, short))
    assert (first.page_bytes, second.page_bytes) == (24 * PAGE, 8 * PAGE)
    assert first.groups[0].layers + second.groups[0].layers == found.layout.groups[0].layers
    assert found.num_blocks == 60 * GIB // (24 * PAGE)
    assert found.num_swap_blocks == GIB // (24 * PAGE)


def test_a_group_of_which_a_stage_has_no_layer_has_its_blocks_there_all_the_same() -> None:
    mixed, plain = facts(FULL, WINDOW, FULL, WINDOW), facts(FULL, FULL, first=4)
    found = agreed(stages(mixed, plain))
    layout = found.layout
    # Two layers of each kind fill a page: the four full ones are two groups.
    assert [group.layers for group in layout.groups] == [("0", "2"), ("4", "5"), ("1", "3")]
    held = layout.held_by(plain.specs)
    assert [group.layers for group in held.groups] == [(), ("4", "5"), ()]
    assert found.state.num_groups == 3
    assert held.blocks_for(4096, 0) == layout.blocks_for(4096, 0)


def test_a_stage_that_caches_nothing_has_pages_of_one_lane() -> None:
    found = agreed(stages(facts(FULL, FULL), facts()))
    assert found.layout.held_by({}).num_lanes == 1


def test_encoded_media_keep_whole_pages_where_their_layer_is() -> None:
    media = CacheSpec.media(heads=2, width=64, dtype="bfloat16", rows=100)
    page = {FULL: 4096, media: 1024}
    with_media = facts(FULL, FULL, media, page_bytes=page)
    found = agreed(stages(facts(FULL, FULL, first=4, page_bytes=page), with_media))
    held = found.layout.held_by(with_media.specs)
    assert held.num_lanes == found.layout.num_lanes == 4
    assert held.groups[-1].block_tokens == found.layout.groups[-1].block_tokens


def test_one_rank_agrees_with_itself_on_all_it_has() -> None:
    alone = facts(FULL, WINDOW, FULL)
    found = agreed([alone])
    assert found.layout.held_by(alone.specs) == found.layout


def test_backends_of_unequal_pages_share_the_larger() -> None:
    found = agreed(two(facts(FULL), facts(FULL, page=2 * PAGE)))
    assert found.layout.page_bytes == 2 * PAGE


def test_ranks_of_a_stage_must_cache_alike() -> None:
    with pytest.raises(CacheError, match="rank 1 of stage 0 has other cached layers"):
        agreed(two(facts(FULL, WINDOW), facts(WINDOW, FULL)))


def test_main_memory_must_hold_the_blocks_of_all() -> None:
    small = facts(FULL, memory=DeviceMemory.of_host(GIB))
    with pytest.raises(CacheError, match="2 GiB is more than the 1 GiB of memory that are free"):
        agreed(two(facts(FULL), small), kv_cache_memory_gib=2)


def test_adapters_are_for_one_rank() -> None:
    lora = AdapterFacts(linears={}, max_rank=8, dtype="float32")
    assert agreed([facts(FULL, adapters=lora)]).adapters is lora
    with pytest.raises(ConfigError, match="enable_lora: adapters are for one device"):
        agreed(two(facts(FULL, adapters=lora), facts(FULL, adapters=lora)))


@pytest.mark.parametrize(
    "place", [{"tp_rank": 2, "tp_size": 2}, {"stage": 1}, {"stage": -1}, {"tp_rank": -1}]
)
def test_a_rank_has_its_place_among_the_others(place: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(place))):
        Ranks(**place)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_random_model(
        tmp_path_factory.mktemp("model"), num_layers=3, max_position_embeddings=256
    )


def config_for(folder: Path, **parallel: Any) -> EngineConfig:
    return EngineConfig(
        model=ModelConfig(model=str(folder), device="cpu", dtype="float32"),
        cache=CacheConfig(num_blocks=70, block_size=4),
        scheduler=SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=16),
        parallel=ParallelConfig(**parallel),
    )


def tokens_of(
    config: EngineConfig, host: PluginHost, look: Callable[[EngineCore], None] = lambda core: None
) -> dict[int, list[int]]:
    """Of five requests, which do not all fit into the cache at a time."""
    core = EngineCore(config, host)
    found: dict[int, list[int]] = {}
    try:
        core.add(
            [
                EngineRequest(
                    request_id=str(i),
                    sequences=(i,),
                    prompt_token_ids=[7 + i] * (9 + 5 * i),
                    sampling=TokenSampling(temperature=i % 2, seed=i, max_tokens=8 + 6 * i),
                )
                for i in range(5)
            ]
        )
        while core.has_work:
            outputs = core.step()
            assert not any(end.error for end in outputs.ends)
            for sequence, token in zip(outputs.sequences, outputs.tokens, strict=True):
                found.setdefault(sequence, []).append(token)
        look(core)
    finally:
        core.close()
    return found


def test_two_tensor_parallel_workers_give_the_tokens_of_one(folder: Path) -> None:
    host = PluginHost.discover()
    host.register(ThreadRanksPlugin())
    alone = tokens_of(config_for(folder), host)
    assert [len(tokens) for tokens in alone.values()] == [8, 14, 20, 26, 32]
    both = config_for(folder, tensor_parallel_size=2, executor="threads")
    assert tokens_of(both, host) == alone


def test_two_ranks_run_recorded_steps_where_both_have_them(folder: Path) -> None:
    """The second has no room for those of four rows."""
    host = PluginHost.discover()
    host.register(ThreadRanksPlugin())
    both = config_for(folder, tensor_parallel_size=2, executor="recording threads")
    ran: list[list[tuple[str, int]]] = []

    def look(core: EngineCore) -> None:
        executor: Any = core._executor
        ran.extend(worker.runner._graphs.ran for worker in executor.workers)

    assert tokens_of(both, host, look) == tokens_of(config_for(folder), host)
    assert ran[0] == ran[1]
    assert {size for _, size in ran[0]} == {1, 2}
    assert len({name for name, _ in ran[0]}) > 1


def test_workers_of_two_stages_allocate_what_they_agreed_on(folder: Path) -> None:
    host = PluginHost.discover()
    config = config_for(folder)
    opened = open_model(config.model, host)
    workers = [
        Worker(config, opened, host, Ranks(stage=0, num_stages=2, last_layer=1)),
        Worker(config, opened, host, Ranks(stage=1, num_stages=2, first_layer=1)),
    ]
    found = agree(
        [worker.measure() for worker in workers], config, max_model_len=opened.max_model_len
    )
    for worker in workers:
        worker.allocate(found)
    pages = [worker.runner.memory.pages for worker in workers]
    assert [len(lanes) for lanes in pages] == [1, 2]
    assert {lanes.shape[1] for lanes in pages} == {found.num_blocks}
    words = [worker.runner.state.layout.num_words for worker in workers]
    assert words[0] == words[1]


@pytest.mark.parametrize("name", ["tensor_parallel", "pipeline_parallel"])
def test_a_model_that_cannot_be_cut_so_is_refused_before_its_weights_are_looked_at(
    tmp_path: Path, name: str
) -> None:
    folder = make_random_model(tmp_path)
    (folder / "model.safetensors").write_bytes(b"damaged")
    config = config_for(folder, **{f"{name}_size": 2})
    config = replace(config, model=replace(config.model, model_impl="transformers"))
    host = PluginHost.discover()
    with pytest.raises(ConfigError, match=rf"{name}_size=2: .*capabilities\.{name}"):
        EngineCore(config, host)
    if name == "tensor_parallel":
        with pytest.raises(ConfigError, match=rf"{name}_size=2: .*capabilities\.{name}"):
            budget_of(config, host, 140)
