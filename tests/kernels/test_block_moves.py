from __future__ import annotations

import pytest
import torch
from torch import Tensor

from octavo_kernels.block_moves import copy_blocks_, reference, swap_blocks_


def pages_of(lanes: int, blocks: int, block_bytes: int) -> Tensor:
    return torch.randint(0, 256, (lanes, blocks, block_bytes), dtype=torch.uint8)


def test_blocks_of_all_lanes_are_copied() -> None:
    pages = pages_of(2, 5, 7)
    before = pages.clone()
    copy_blocks_(pages, torch.tensor([0, 3]), torch.tensor([4, 1]))
    assert torch.equal(pages, before[:, [0, 3, 2, 3, 0]])


def test_blocks_go_from_one_tensor_to_another() -> None:
    source, target = pages_of(2, 3, 4), pages_of(2, 6, 4)
    before = target.clone()
    swap_blocks_(source, target, torch.tensor([2, 0]), torch.tensor([1, 5]))
    assert torch.equal(target[:, [1, 5]], source[:, [2, 0]])
    assert torch.equal(target[:, [0, 2, 3, 4]], before[:, [0, 2, 3, 4]])


def test_arguments_that_do_not_fit_are_refused() -> None:
    one, two = torch.tensor([0]), torch.tensor([0, 1])
    with pytest.raises(ValueError, match=r"\[2, 3, 4\] cannot go to \[2, 3, 5\]"):
        swap_blocks_(pages_of(2, 3, 4), pages_of(2, 3, 5), one, one)
    with pytest.raises(ValueError, match=r"sources \[1\] of torch.int64 and targets \[2\]"):
        copy_blocks_(pages_of(2, 3, 4), one, two)
    with pytest.raises(ValueError, match=r"torch.float32 and strides"):
        copy_blocks_(pages_of(2, 3, 4).float(), one, one)


@pytest.mark.gpu
@pytest.mark.parametrize("block_bytes", [65536, 16, 4112, 20001])
def test_moves_on_the_device_equal_the_reference(block_bytes: int) -> None:
    lanes, num_blocks = 3, 40
    pages, swap = pages_of(lanes, num_blocks, block_bytes), pages_of(lanes, 20, block_bytes)
    device_pages, pinned = pages.cuda(), swap.pin_memory()
    order = torch.randperm(num_blocks)
    sources, targets, swaps = order[:9], order[9:18], torch.randperm(20)[:9]
    reference.move_blocks(pages, swap, targets, swaps)
    swap_blocks_(device_pages, pinned, targets.cuda(), swaps.cuda())
    reference.move_blocks(pages, pages, sources, targets)
    copy_blocks_(device_pages, sources.cuda(), targets.cuda())
    reference.move_blocks(swap, pages, swaps, sources)
    swap_blocks_(pinned, device_pages, swaps.cuda(), sources.cuda())
    torch.cuda.synchronize()
    assert torch.equal(pinned, swap)
    assert torch.equal(device_pages.cpu(), pages)


@pytest.mark.gpu
def test_host_memory_that_is_not_pinned_is_refused() -> None:
    index = torch.tensor([0], device="cuda")
    with pytest.raises(ValueError, match="must be pinned"):
        swap_blocks_(pages_of(1, 2, 16), pages_of(1, 2, 16).cuda(), index, index)
