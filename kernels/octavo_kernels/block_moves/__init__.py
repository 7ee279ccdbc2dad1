"""Copies of whole cache blocks. Axis suffixes: L lanes, N blocks, B bytes of a block, M moves.

In a call no block may be written twice, nor both read and written.
"""

import torch
from torch import Tensor

from octavo_kernels.block_moves import reference
from octavo_kernels.build import I, KernelSpec, L, P
from octavo_kernels.library import library, stream_of

SPEC = KernelSpec(
    name="block_moves",
    functions={"octavo_move_blocks": (P, P, P, P, I, I, L, L, L)},
)


def copy_blocks_(pages_LNB: Tensor, sources_M: Tensor, targets_M: Tensor) -> None:
    """Copy block ``sources_M[m]`` of every lane onto block ``targets_M[m]``.

    Pages are uint8; the indices are int64 and lie where the pages lie.
    """
    _move(pages_LNB, pages_LNB, sources_M, targets_M)


def swap_blocks_(
    source_LNB: Tensor, target_LNB: Tensor, sources_M: Tensor, targets_M: Tensor
) -> None:
    """As ``copy_blocks_``, from one tensor of pages to another.

    One of them may lie in pinned host memory, which the device reads and writes itself. The host
    may look at it once the stream has come so far. The indices lie on the device.
    """
    for name, pages_LNB in (("source", source_LNB), ("target", target_LNB)):
        if sources_M.is_cuda and not pages_LNB.is_cuda and not pages_LNB.is_pinned():
            raise ValueError(
                f"swap_blocks_: the {name}, {list(pages_LNB.shape)} on the host, must be pinned"
            )
    _move(source_LNB, target_LNB, sources_M, targets_M)


def _move(source_LNB: Tensor, target_LNB: Tensor, sources_M: Tensor, targets_M: Tensor) -> None:
    num_lanes, _, block_bytes = source_LNB.shape
    if (target_LNB.shape[0], target_LNB.shape[2]) != (num_lanes, block_bytes):
        raise ValueError(
            f"blocks of {list(source_LNB.shape)} cannot go to {list(target_LNB.shape)}: lanes and "
            "bytes must be the same"
        )
    for pages_LNB in (source_LNB, target_LNB):
        if pages_LNB.dtype is not torch.uint8 or not pages_LNB.is_contiguous():
            raise ValueError(
                f"pages of {pages_LNB.dtype} and strides {pages_LNB.stride()} must be contiguous "
                "uint8"
            )
    if (
        sources_M.shape != targets_M.shape
        or {sources_M.dtype, targets_M.dtype} != {torch.int64}
        or not (sources_M.is_contiguous() and targets_M.is_contiguous())
    ):
        raise ValueError(
            f"sources {list(sources_M.shape)} of {sources_M.dtype} and targets "
            f"{list(targets_M.shape)} of {targets_M.dtype} must be two int64 lists of one length"
        )
    if not sources_M.is_cuda:
        reference.move_blocks(source_LNB, target_LNB, sources_M, targets_M)
    elif sources_M.shape[0] and num_lanes and block_bytes:
        index = sources_M.device.index
        library(SPEC, index).octavo_move_blocks(
            source_LNB.data_ptr(),
            target_LNB.data_ptr(),
            sources_M.data_ptr(),
            targets_M.data_ptr(),
            sources_M.shape[0],
            num_lanes,
            block_bytes,
            source_LNB.stride(0),
            target_LNB.stride(0),
            stream_of(index),
        )


__all__ = ["SPEC", "copy_blocks_", "swap_blocks_"]
