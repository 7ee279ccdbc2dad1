from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from octavo.errors import ModelError
from octavo.model_folder import header
from octavo.weights import open_checkpoint
from octavo.weights.staging import NUM_BUFFERS, TORCH_DTYPES, staged_tensors

CPU = torch.device("cpu")
NAMES_OF_DTYPES = {dtype: name for name, dtype in TORCH_DTYPES.items()}


def some_tensors(count: int, seed: int) -> dict[str, Tensor]:
    """Of all lengths around a piece of 64 bytes, and of several dtypes."""
    torch.manual_seed(seed)
    dtypes = (torch.float32, torch.bfloat16, torch.uint8, torch.int64, torch.bool)
    return {
        f"{seed}.{i}": torch.randint(0, 2, (i % 7, 1 + 5 * i % 11)).to(dtypes[i % len(dtypes)])
        for i in range(count)
    } | {f"{seed}.scalar": torch.tensor(2.5), f"{seed}.empty": torch.empty(0, 3)}


def assert_arrive(folder: Path, device: torch.device, piece_bytes: int) -> None:
    checkpoint = open_checkpoint(folder)
    arrived = [
        (path, name, tensor.cpu())
        for path, name, tensor in staged_tensors(checkpoint, device, piece_bytes=piece_bytes)
    ]
    stored = list(checkpoint.tensors())
    assert [entry[:2] for entry in arrived] == [entry[:2] for entry in stored]
    for (_, name, tensor), (_, _, expected) in zip(arrived, stored, strict=True):
        assert tensor.dtype == expected.dtype, name
        assert torch.equal(tensor, expected), name


@pytest.mark.parametrize("piece_bytes", [1, 7, 64, 1 << 20])
def test_tensors_arrive_whole_whatever_the_pieces(tmp_path: Path, piece_bytes: int) -> None:
    for i in range(3):
        save_file(some_tensors(20, seed=i), tmp_path / f"{i}.safetensors")
    assert_arrive(tmp_path, CPU, piece_bytes)


def test_files_that_end_within_a_piece_leave_the_buffers_whole(tmp_path: Path) -> None:
    for i in range(3 * NUM_BUFFERS):
        save_file({f"{i}": torch.arange(i + 1.0)}, tmp_path / f"{i:03}.safetensors")
    assert_arrive(tmp_path, CPU, piece_bytes=16)


def test_a_tensor_is_the_callers_own(tmp_path: Path) -> None:
    save_file({str(i): torch.full((9,), float(i)) for i in range(99)}, tmp_path / "x.safetensors")
    kept = {
        name: tensor
        for _, name, tensor in staged_tensors(open_checkpoint(tmp_path), CPU, piece_bytes=8)
    }
    assert all((tensor == float(name)).all() for name, tensor in kept.items())


@pytest.mark.parametrize("dtype", list(NAMES_OF_DTYPES))
def test_each_dtype_has_the_size_that_headers_give_it(dtype: torch.dtype) -> None:
    assert dtype.itemsize * 8 == header.DTYPE_BITS[NAMES_OF_DTYPES[dtype]]


def test_a_dtype_that_cannot_be_loaded_is_named_with_its_tensor(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2, dtype=torch.uint8)}, tmp_path / "x.safetensors")
    whole = (tmp_path / "x.safetensors").read_bytes()
    (tmp_path / "x.safetensors").write_bytes(
        whole.replace(b'"U8","shape":[2]', b'"F4","shape":[4]')
    )
    with pytest.raises(ModelError, match=r"x\.safetensors: tensor 'a' of F4 cannot be loaded"):
        list(staged_tensors(open_checkpoint(tmp_path), CPU))


def test_a_file_that_is_cut_or_removed_after_its_check_is_named(tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    save_file({str(i): torch.ones(100) for i in range(100)}, file)
    stream = staged_tensors(open_checkpoint(tmp_path), CPU, piece_bytes=64)
    next(stream)
    with file.open("r+b") as opened:
        opened.truncate(1000)
    with pytest.raises(ModelError, match=r"x\.safetensors became shorter while it was read"):
        list(stream)
    save_file({str(i): torch.ones(100) for i in range(100)}, file)
    stream = staged_tensors(open_checkpoint(tmp_path), CPU, piece_bytes=64)
    next(stream)
    file.unlink()
    with pytest.raises(ModelError, match=r"x\.safetensors cannot be read: No such file"):
        list(stream)


@pytest.mark.gpu
@pytest.mark.parametrize("piece_bytes", [61, 1 << 20])
def test_tensors_arrive_whole_on_cuda(tmp_path: Path, piece_bytes: int) -> None:
    for i in range(3):
        tensors = some_tensors(20, seed=i)
        if piece_bytes > 1 << 10:  # more than all buffers hold
            tensors[f"{i}.large"] = torch.randn(NUM_BUFFERS << 18, 2)
        save_file(tensors, tmp_path / f"{i}.safetensors")
    assert_arrive(tmp_path, torch.device("cuda"), piece_bytes)


@pytest.mark.gpu
def test_a_tensor_on_cuda_outlives_the_buffers_it_came_through(tmp_path: Path) -> None:
    save_file(
        {str(i): torch.full((3000,), float(i)) for i in range(500)}, tmp_path / "x.safetensors"
    )
    kept = {}
    busy = torch.randn(4096, 4096, device="cuda")
    for _ in range(20):
        busy = busy @ busy  # copies queue up behind it
    for _, name, tensor in staged_tensors(
        open_checkpoint(tmp_path), torch.device("cuda"), piece_bytes=4096
    ):
        kept[name] = tensor
    assert all((tensor == float(name)).all() for name, tensor in kept.items())
