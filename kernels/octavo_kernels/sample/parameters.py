"""The sampling state as the CUDA kernels take it: one structure of pointers, made once."""

from __future__ import annotations

import ctypes
from dataclasses import fields

import torch
from torch import Tensor

from octavo_kernels.sample.state import SamplingState

MAX_ROWS = 65535
"""Rows of one call."""

_BLOCKS_PER_SM = 4
"""As kBlocksPerSm in kernel.cu: a row is divided only among so many blocks in all."""

_TENSORS = {each.name: each.metadata["dtype"] for each in fields(SamplingState)}
_MEMORY = ("partial_values", "partial_ids", "arrivals", "best")
_SIZES = (
    "max_tokens",
    "num_stop_ids",
    "bias_room",
    "allowed_words",
    "bad_words_room",
    "bad_word_room",
    "num_sms",
)


class KernelParameters(ctypes.Structure):
    """As Parameters in parameters.cuh."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in (*_TENSORS, *_MEMORY)),
        *((name, ctypes.c_int) for name in _SIZES),
    ]

    def __init__(self, state: SamplingState) -> None:
        device = state.tokens_SL.device
        num_slots = state.tokens_SL.shape[0]
        pointers: list[int | None] = []
        for name, dtype in _TENSORS.items():
            tensor: Tensor | None = getattr(state, name)
            if tensor is None:
                pointers.append(None)
                continue
            if tensor.dtype is not dtype or not tensor.is_contiguous() or tensor.device != device:
                raise ValueError(
                    f"sample: {name} is {tensor.dtype} of strides {tensor.stride()} on "
                    f"{tensor.device}; it must be {dtype}, contiguous, on {device}"
                )
            if tensor.shape[0] != num_slots:
                raise ValueError(f"sample: {name} has {tensor.shape[0]} slots, tokens {num_slots}")
            pointers.append(tensor.data_ptr())
        num_sms = torch.cuda.get_device_properties(device).multi_processor_count
        num_partials = _BLOCKS_PER_SM * num_sms
        sizes = (2 * num_partials, num_partials, num_partials, MAX_ROWS)
        self.memory = torch.zeros(sum(sizes), dtype=torch.int32, device=device)
        """What ``_MEMORY`` points into: the arrivals must begin as zeros."""
        memory = [part.data_ptr() for part in self.memory.split(sizes)]
        bad_words_shape = _width(state.bad_words_SNL, 1), _width(state.bad_words_SNL, 2)
        super().__init__(
            *pointers,
            *memory,
            state.tokens_SL.shape[1],
            state.stop_ids_SK.shape[1],
            _width(state.bias_ids_SN, 1),
            _width(state.allowed_SW, 1),
            *bad_words_shape,
            num_sms,
        )


def _width(table: Tensor | None, dim: int) -> int:
    return 0 if table is None else table.shape[dim]
