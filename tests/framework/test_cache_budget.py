import pytest

from octavo.cache.budget import GIB, DeviceMemory, size_pool
from octavo.cache.groups import make_layout
from octavo.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from octavo.errors import CacheError
from octavo_registry.cache import CacheSpec

SPEC = CacheSpec.full(kv_heads=8, head_dim=128, dtype="bfloat16")
PAGE = 65_536  # bytes of a layer's block of 16 tokens
LAYOUT = make_layout({str(i): SPEC for i in range(32)}, lambda spec: PAGE, 16)

HOST = DeviceMemory.of_host(64 * GIB)


def size(memory=HOST, *, workspace=0, length=4096, shrink=False, swap=False, **cache):
    config = EngineConfig(
        model=ModelConfig(model="m"),
        cache=CacheConfig(**cache),
        scheduler=SchedulerConfig(preemption_mode="swap" if swap else "recompute"),
    )
    return size_pool(
        config,
        LAYOUT,
        num_slots=256,
        memory=memory,
        workspace=workspace,
        max_model_len=length,
        shrink_context=shrink,
    )


def test_the_pool_is_what_utilisation_leaves_after_weights_others_and_workspace():
    memory = DeviceMemory(total=100 * GIB, free=70 * GIB)
    pool = size(memory, workspace=10 * GIB, gpu_memory_utilization=0.9)
    assert pool.num_blocks == (90 - 30 - 10) * GIB // (32 * PAGE)
    assert pool.num_swap_blocks == 0


def test_too_little_memory_says_what_to_change():
    memory = DeviceMemory(total=20 * GIB, free=3 * GIB)
    with pytest.raises(CacheError, match=r"max_model_len=131072.*16 GiB.*'auto'"):
        size(memory, length=131_072)


def test_an_automatic_context_shrinks_to_what_fits():
    pool = size(num_blocks=101, length=131_072, shrink=True)
    assert pool.max_model_len == 1600


def test_a_cpu_gets_no_more_than_all_rows_could_use():
    assert size(length=64).num_blocks == 1 + 4 * 256
    assert size(length=4096).num_blocks == 4 * GIB // (32 * PAGE)


def test_a_cpu_gets_half_of_the_memory_that_is_free():
    host = DeviceMemory.of_host(7 * GIB)
    assert size(host, workspace=GIB).num_blocks == 3 * GIB // (32 * PAGE)
    with pytest.raises(CacheError, match="gets 0 GiB"):
        size(host, workspace=8 * GIB)
    assert size(host, kv_cache_memory_gib=6.0).num_blocks == 6 * GIB // (32 * PAGE)


def test_swap_space_is_made_only_for_swapping():
    assert size(swap=True, swap_gib=1.0).num_swap_blocks == GIB // (32 * PAGE)
