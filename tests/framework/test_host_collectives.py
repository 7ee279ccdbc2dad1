"""Ranks exchange through shared memory: threads here, each with a view of its own."""

from __future__ import annotations

import mmap
import random
import threading
import time
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from octavo.worker.host_collectives import (
    SLOT_BYTES,
    HostCollectives,
    RankAbortedError,
    shared_bytes,
)


def on_ranks(size: int, run: Callable[[HostCollectives, int], None]) -> None:
    """Each rank in a thread; what one raises is raised here."""
    memory = mmap.mmap(-1, shared_bytes(size))
    raised: list[BaseException] = []

    def run_rank(rank: int) -> None:
        try:
            run(HostCollectives(memory, rank, size), rank)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run_rank, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    if raised:
        raise raised[0]


@pytest.mark.parametrize("size", [2, 3, 4, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_all_ranks_have_the_same_sums_in_the_order_of_a_tree(size: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(size)
    given = torch.randn(size, 7, 5, generator=generator).to(dtype)
    parts = [x.float() for x in given]
    while len(parts) > 1:
        odd = parts[-1:] if len(parts) % 2 else []
        parts = [parts[i] + parts[i + 1] for i in range(0, len(parts) - 1, 2)] + odd
    found: dict[int, Tensor] = {}
    on_ranks(size, lambda ranks, rank: found.update({rank: ranks.all_reduce(given[rank])}))
    for rank in range(size):
        assert torch.equal(found[rank], parts[0].to(dtype))


def test_what_is_larger_than_a_slot_goes_in_pieces_and_what_is_empty_not_at_all() -> None:
    num = SLOT_BYTES // 4 * 2 + 3
    given = torch.arange(2 * num, dtype=torch.float32).view(2, 1, num)

    def run(ranks: HostCollectives, rank: int) -> None:
        assert torch.equal(ranks.all_reduce(given[rank]), given.sum(0))
        assert torch.equal(ranks.all_gather(given[rank]), torch.cat([*given], dim=-1))
        assert ranks.all_reduce(torch.empty(0, 4)).shape == (0, 4)
        assert ranks.all_gather(torch.empty(0, 4)).shape == (0, 8)

    on_ranks(2, run)


def test_ranks_that_dawdle_read_what_was_meant_for_that_exchange() -> None:
    """Whoever is ahead may be by one exchange: two turns hold."""

    def run(ranks: HostCollectives, rank: int) -> None:
        rng = random.Random(rank)
        for turn in range(400):
            x = torch.full((3, 2), float(turn * (rank + 1)))
            if rng.random() < 0.1:
                time.sleep(rng.random() * 2e-3)
            if turn % 3:
                assert ranks.all_reduce(x).eq(turn * 6).all()
            else:
                expected = torch.tensor([turn, turn, 2 * turn, 2 * turn, 3 * turn, 3 * turn])
                assert ranks.all_gather(x).eq(expected).all()

    on_ranks(3, run)


def test_who_waits_for_a_rank_that_raised_raises_and_all_can_begin_anew() -> None:
    barrier = threading.Barrier(3)

    def run(ranks: HostCollectives, rank: int) -> None:
        for _ in range(3):
            ranks.all_reduce(torch.ones(2))
            if rank == 1:
                ranks.abort()
            else:
                with pytest.raises(RankAbortedError):
                    ranks.all_reduce(torch.ones(2))
            barrier.wait()
            ranks.reset()
            barrier.wait()
        assert ranks.all_reduce(torch.ones(1)).item() == 3

    on_ranks(3, run)
