import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.cache.groups import CacheLayout, make_layout
from octavo.cache.pool import BlockPool
from octavo.cache.prefix import chain_seed, extend_chain, first_visible, longest_prefix
from octavo.cache.state_lines import ZEROS, StateLines
from octavo.errors import CacheError
from octavo_registry.cache import CacheSpec

FULL = CacheSpec.full(kv_heads=2, head_dim=8, dtype="float32")
WINDOW = CacheSpec.sliding(kv_heads=2, head_dim=8, dtype="float32", window=6)


def layout_of(*specs: CacheSpec) -> CacheLayout:
    return make_layout({str(i): spec for i, spec in enumerate(specs)}, lambda spec: 64, 4)


def test_a_fresh_pool_gives_consecutive_blocks_and_never_block_zero():
    pool = BlockPool(6)
    assert pool.allocate(3).tolist() == [1, 2, 3]
    assert pool.allocate(2).tolist() == [4, 5]
    assert pool.num_available == 0


def test_released_blocks_with_a_key_are_found_until_they_are_needed():
    pool = BlockPool(4)
    blocks = pool.allocate(3)
    for index, block in enumerate(blocks.tolist()):
        pool.register(block, 0, bytes([index]))
    pool.release(blocks)
    assert (pool.num_live, pool.num_cached, pool.num_available) == (0, 3, 3)
    # The end of a chain goes first: what is left of it can still be reused.
    assert pool.allocate(1).tolist() == [3]
    assert pool.find(0, bytes([2])) is None
    assert pool.find(0, bytes([0])) == 1


def test_the_least_recently_used_content_is_evicted_first():
    pool = BlockPool(3)
    first, second = pool.allocate(1), pool.allocate(1)
    pool.register(1, 0, b"first")
    pool.register(2, 0, b"second")
    pool.release(first)
    pool.release(second)
    pool.share(first)
    pool.release(first)
    assert pool.allocate(1).tolist() == [2]
    assert pool.find(0, b"first") == 1


def test_a_shared_block_lives_until_its_last_reference_goes():
    pool = BlockPool(3)
    block = pool.allocate(1)
    pool.share(block)
    pool.release(block)
    assert pool.num_live == 1
    pool.release(block)
    assert pool.num_live == 0


def test_the_same_content_in_another_group_is_another_block():
    pool = BlockPool(3)
    pool.allocate(2)
    pool.register(1, 0, b"k")
    pool.register(2, 1, b"k")
    assert (pool.find(0, b"k"), pool.find(1, b"k")) == (1, 2)


def test_chain_parts_cannot_be_shifted_between_salt_and_adapter():
    assert chain_seed("m", "ab", "c") != chain_seed("m", "a", "bc")
    assert chain_seed("m", "", "s") != chain_seed("m", "s", "")


@given(st.lists(st.integers(0, 5), min_size=8, max_size=24), st.integers(0, 23))
def test_a_digest_depends_on_every_token_before_it(tokens, changed):
    changed %= len(tokens)
    original, other = np.array(tokens, np.int32), np.array(tokens, np.int32)
    other[changed] += 1
    one: list[bytes] = []
    two: list[bytes] = []
    extend_chain(one, b"", original, 4)
    extend_chain(two, b"", other, 4)
    for index, (left, right) in enumerate(zip(one, two, strict=True)):
        assert (left == right) == (index < changed // 4)


def test_extending_a_chain_bit_by_bit_gives_the_same_digests():
    tokens = np.arange(40, dtype=np.int32)
    whole: list[bytes] = []
    extend_chain(whole, b"seed", tokens, 4)
    grown: list[bytes] = []
    for end in (3, 4, 9, 26, 40):
        extend_chain(grown, b"seed", tokens[:end], 4)
    assert grown == whole


def test_a_window_group_needs_only_what_the_next_token_sees():
    layout = layout_of(FULL, WINDOW)
    pool = BlockPool(20)
    digests = [bytes([i]) for i in range(4)]
    full, window = pool.allocate(4), pool.allocate(4)
    for index in range(4):
        pool.register(int(full[index]), 0, digests[index])
        if index >= 2:
            pool.register(int(window[index]), 1, digests[index])
    length, blocks = longest_prefix(pool, layout, digests, 4)
    assert length == 4
    assert blocks[0].tolist() == full.tolist()
    assert blocks[1].tolist() == [0, 0, int(window[2]), int(window[3])]
    # Three blocks would need block 1 of the window group, which is gone.
    assert longest_prefix(pool, layout, digests, 3)[0] == 0


def test_a_long_prefix_is_looked_up_where_states_may_be_kept_alone():
    """Who waits for room is looked up in each step."""

    class Asked(StateLines):
        def find(self, digest: bytes) -> int | None:
            asked.append(digest)
            return super().find(digest)

    asked: list[bytes] = []
    lines, moves = Asked(8, 1, checkpoint_tokens=256), []
    digests = [index.to_bytes(2) for index in range(2_049)]
    lines.hold(0, lines.take(ZEROS, moves), 0)
    slot, start, end = np.array([0]), np.array([0]), np.array([512])
    lines.follow(slot, start, end, np.array([True]), moves)
    lines.register(0, 512, digests, 4)
    layout = CacheLayout(groups=(), num_lanes=0, lane_bytes=0, block_tokens=4)
    assert longest_prefix(BlockPool(1), layout, digests, 2_049, lines)[0] == 128
    assert len(asked) == 2_048 // 64 - 1


@pytest.mark.parametrize(("window", "position", "first"), [(None, 9, 0), (4, 9, 6), (16, 9, 0)])
def test_first_visible_position(window, position, first):
    assert first_visible(window, position) == first


def test_layers_with_equal_specs_share_a_group_and_many_are_split_to_fill_pages():
    layout = layout_of(FULL, WINDOW, WINDOW, WINDOW, WINDOW, WINDOW, FULL)
    assert layout.num_lanes == 2
    assert [group.layers for group in layout.groups] == [
        ("0", "6"),
        ("1", "2"),
        ("3", "4"),
        ("5",),
    ]
    assert layout.page_bytes == 128
    assert len(layout_of(FULL, FULL, FULL).groups) == 1


def test_layers_without_a_cache_are_left_out_and_unknown_kinds_are_refused_by_name():
    assert layout_of(FULL, CacheSpec.none()).groups[0].layers == ("0",)
    with pytest.raises(CacheError, match=r"layer 0.*'paged'"):
        layout_of(CacheSpec(kind="paged", kv_heads=1, key_dim=1))


def test_layers_whose_keys_live_for_one_step_have_groups_and_no_page_and_no_other_beside():
    both, near = (
        CacheSpec.in_step(sees="all", window=w, kv_heads=2, head_dim=8, dtype="float32")
        for w in (None, 4)
    )
    layout = layout_of(both, near, near, both)
    assert [(g.spec, g.layers, g.block_tokens) for g in layout.groups] == [
        (both, ("0", "3"), 0),
        (near, ("1", "2"), 0),
    ]
    assert layout.page_bytes == 0
    with pytest.raises(CacheError, match="layer 1 has a cache of kind 'full'"):
        layout_of(both, FULL)


def test_only_layers_without_a_cache_say_what_they_see_of_a_row():
    with pytest.raises(ValueError, match="sees='all' does not fit kind='full'"):
        CacheSpec(kind="full", kv_heads=1, key_dim=8, value_dim=8, sees="all")
    with pytest.raises(ValueError, match="sees='behind'"):
        CacheSpec.in_step(sees="behind", kv_heads=2, head_dim=8, dtype="float32")
