"""What octavo_kernels.linear and the kernels it chooses from share.

Axis suffixes: T tokens, I inner (input) features, O output features.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from octavo_kernels.library import DTYPE_CODES, stream_of

EPILOGUES = {
    "plain_quick_gelu": -3,
    "plain_gelu": -2,
    "plain_gelu_tanh": -1,
    "store": 0,
    "add": 1,
    "silu": 2,
    "gelu": 3,
    "gelu_tanh": 4,
}
"""How a kernel is told what to do with sums: those after "add" are activations of gates, those
before "store" of sums without gates, which `linear_tall` alone has."""

Launch = Callable[[Tensor, Tensor, Tensor, Tensor | None, str], None]
"""Computes a product into its first argument, which "add" adds to. Then follow x, the weight, the
bias and a key of EPILOGUES. There is at least one token, and the kernel `takes` x and weight."""


def is_gated(epilogue: str) -> bool:
    """Whether the weight has gates and, after them, as many ups."""
    return EPILOGUES[epilogue] > EPILOGUES["add"]


def is_plain_activation(epilogue: str) -> bool:
    """Whether sums are activated and stored, without gates."""
    return EPILOGUES[epilogue] < EPILOGUES["store"]


def product(
    launch: Launch, x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None, epilogue: str
) -> Tensor:
    """What a kernel makes of x and the weight, in a tensor of its own."""
    rows = weight_OI.shape[0]
    out_TO = x_TI.new_empty(x_TI.shape[0], rows // 2 if is_gated(epilogue) else rows)
    launch(out_TO, x_TI, weight_OI, bias_O, epilogue)
    return out_TO


def call(
    function: Callable[..., Any],
    out_TO: Tensor,
    x_TI: Tensor,
    weight_OI: Tensor,
    bias_O: Tensor | None,
    epilogue: str,
    *tiling: int,
    more: Iterable[Any] = (),
) -> None:
    """Hand a product to a library's function.

    How it is cut up stands amid the arguments, ``more`` before the stream.
    """
    function(
        out_TO.data_ptr(),
        x_TI.data_ptr(),
        weight_OI.data_ptr(),
        None if bias_O is None else bias_O.data_ptr(),
        DTYPE_CODES[x_TI.dtype],
        EPILOGUES[epilogue],
        *tiling,
        *x_TI.shape,
        weight_OI.shape[0],
        x_TI.stride(0),
        out_TO.stride(0),
        *more,
        stream_of(x_TI.get_device()),
    )


def takes(x_TI: Tensor, weight_OI: Tensor, *, gated: bool) -> bool:
    """Whether the kernels can multiply tensors that fit each other."""
    rows, features = weight_OI.shape
    return (
        x_TI.dtype in (torch.bfloat16, torch.float16)
        and x_TI.is_cuda
        and features % 8 == 0
        and features > 0
        and rows % (16 if gated else 8) == 0
        and rows > 0
        and has_rows_of(16, x_TI)
        and weight_OI.data_ptr() % 16 == 0
        and num_processors(x_TI.get_device()) > 0
    )


def has_rows_of(num_bytes: int, tensor: Tensor) -> bool:
    """Whether rows of 16-bit floats are contiguous and begin at multiples of so many bytes."""
    row_stride, step = tensor.stride()
    return step == 1 and row_stride % (num_bytes // 2) == 0 and tensor.data_ptr() % num_bytes == 0


@functools.cache
def num_processors(device_index: int) -> int:
    """Multiprocessors of a Hopper GPU; 0 for others."""
    properties = torch.cuda.get_device_properties(device_index)
    return properties.multi_processor_count if properties.major == 9 else 0
