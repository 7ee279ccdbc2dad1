import pytest

from octavo.cache.budget import GIB, DeviceMemory, size_pool
from octavo.cache.groups import make_layout
from octavo.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from octavo.errors import CacheError
from octavo_registry.cache import CacheSpec, StateTensor

SPEC = CacheSpec.full(kv_heads=8, head_dim=128, dtype="bfloat16")
PAGE = 65_536  # bytes of a layer's block of 16 tokens
LAYOUT = make_layout({str(i): SPEC for i in range(32)}, lambda spec: PAGE, 16)

STATE = CacheSpec.state(
    tensors=(StateTensor((2**20,), "float32"),), log=(StateTensor((64,), "float32"),)
)
HYBRID = make_layout({"a": SPEC, "s": STATE}, lambda spec: PAGE, 16)
STATES = make_layout({"s": STATE, "t": STATE}, lambda spec: PAGE, 16)

HOST = DeviceMemory.of_host(64 * GIB)


def size(
    memory=HOST, *, layout=LAYOUT, workspace=0, length=4096, shrink=False, swap=False, **cache
):
    config = EngineConfig(
        model=ModelConfig(model="m"),
        cache=CacheConfig(**cache),
        scheduler=SchedulerConfig(preemption_mode="swap" if swap else "recompute"),
    )
    return size_pool(
        config,
        layout,
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


def test_half_of_the_memory_is_for_states_and_two_for_each_row_are_enough():
    assert HYBRID.lines.line_bytes == 256 + 2**22 + 256
    budget = 2 * GIB
    pool = size(layout=HYBRID, kv_cache_memory_gib=2)
    assert pool.num_lines == budget // 2 // HYBRID.lines.line_bytes
    left = budget - pool.num_lines * HYBRID.lines.line_bytes
    assert pool.num_blocks == left // PAGE
    assert size(layout=HYBRID, kv_cache_memory_gib=32).num_lines == 2 + 2 * 256
    assert size(layout=HYBRID, kv_cache_memory_gib=2, num_state_lines=7).num_lines == 2 + 7


def test_states_alone_have_all_of_the_memory_and_no_blocks():
    pool = size(layout=STATES, kv_cache_memory_gib=1)
    assert pool.num_lines == GIB // STATES.lines.line_bytes
    assert (pool.num_blocks, pool.num_swap_blocks, pool.max_model_len) == (1, 0, 4096)


def test_swap_space_is_shared_by_blocks_and_states():
    pool = size(layout=HYBRID, kv_cache_memory_gib=8, swap=True, swap_gib=1)
    assert pool.num_swap_lines == GIB // 2 // HYBRID.lines.line_bytes
    assert pool.num_swap_blocks == (GIB - pool.num_swap_lines * HYBRID.lines.line_bytes) // PAGE


def test_too_little_memory_for_one_state_says_what_to_change():
    with pytest.raises(CacheError, match=r"0\.00781 GiB, and .* GiB are for 3 of them at least"):
        size(layout=STATES, kv_cache_memory_gib=0.01)
