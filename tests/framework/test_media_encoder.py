"""Tensors of media as the engine reads them."""

from __future__ import annotations

import pytest
import torch

from octavo.execution.media_encoder import read_tensor
from octavo.inputs.media import write_tensor


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(), (3,), (5, 3, 2)])
def test_a_tensor_is_read_as_it_was_written(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.randint(0, 200, shape).to(dtype)
    read = read_tensor(write_tensor(tensor))
    assert read.dtype is dtype
    assert read.shape == tensor.shape
    assert torch.equal(read, tensor)


def test_who_writes_into_what_was_read_leaves_the_message_as_it_is() -> None:
    data = write_tensor(torch.arange(6))
    read_tensor(data).zero_()
    assert read_tensor(data).tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.gpu
def test_a_tensor_for_a_gpu_is_read_into_pinned_memory() -> None:
    read = read_tensor(write_tensor(torch.arange(6)), pinned=True)
    assert read.is_pinned()
    assert read.tolist() == [0, 1, 2, 3, 4, 5]
