"""What the kernels of octavo_kernels.linear's products ask of tensors, and how they are told apart.

Axis suffixes: T tokens, I inner (input) features, O output features.
"""

import functools

import torch
from torch import Tensor

EPILOGUES = {"store": 0, "add": 1, "silu": 2, "gelu": 3, "gelu_tanh": 4}
"""How a kernel is told what to do with sums."""


def takes(x_TI: Tensor, weight_OI: Tensor, *, row_multiple: int = 8) -> bool:
    """Whether the kernels can multiply tensors that fit each other; 16 for a gated product."""
    features = x_TI.shape[1]
    return (
        x_TI.dtype in (torch.bfloat16, torch.float16)
        and x_TI.is_cuda
        and features % 8 == 0
        and features > 0
        and weight_OI.shape[0] % row_multiple == 0
        and has_rows_of(16, x_TI)
        and weight_OI.data_ptr() % 16 == 0
        and num_processors(x_TI.get_device()) > 0
    )


def has_rows_of(num_bytes: int, tensor: Tensor) -> bool:
    """Whether rows of 16-bit floats are contiguous and begin at multiples of so many bytes."""
    row_stride, step = tensor.stride()
    return step == 1 and row_stride % (num_bytes // 2) == 0 and tensor.data_ptr() % num_bytes == 0


def check(
    function: str, x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None, row_multiple: int
) -> None:
    """Raise for tensors that do not fit each other or, on CUDA, the kernels."""
    if (
        x_TI.dim() != 2
        or weight_OI.dim() != 2
        or x_TI.shape[1] != weight_OI.shape[1]
        or x_TI.dtype is not weight_OI.dtype
        or not weight_OI.is_contiguous()
        or weight_OI.shape[0] % (row_multiple // 8)
    ):
        raise ValueError(
            f"{function}: x {list(x_TI.shape)} of {x_TI.dtype} and weight {list(weight_OI.shape)} "
            f"of {weight_OI.dtype} with strides {weight_OI.stride()} must be of two axes, the "
            "last of one size, and of one dtype, the weight contiguous, with as many ups as gates"
        )
    if bias_O is not None and (
        bias_O.shape != weight_OI.shape[:1] or bias_O.dtype is not x_TI.dtype
    ):
        raise ValueError(
            f"{function}: the bias, {list(bias_O.shape)} of {bias_O.dtype}, must be "
            f"[{weight_OI.shape[0]}] of {x_TI.dtype}"
        )
    if x_TI.is_cuda and not takes(x_TI, weight_OI, row_multiple=row_multiple):
        raise ValueError(
            f"{function}: x {list(x_TI.shape)} of {x_TI.dtype} with strides {x_TI.stride()} and "
            f"weight {list(weight_OI.shape)} need a Hopper GPU, 16-bit floats, features of 8, "
            f"rows of {row_multiple} and x's rows contiguous and from multiples of 16 bytes"
        )


def check_residual(residual_TO: Tensor, x_TI: Tensor, weight_OI: Tensor, *, num_bytes: int) -> None:
    """Raise if the product cannot be added; on CUDA rows begin at multiples of so many bytes."""
    shape = (x_TI.shape[0], weight_OI.shape[0])
    if (
        residual_TO.shape != shape
        or residual_TO.dtype is not x_TI.dtype
        or (residual_TO.is_cuda and not has_rows_of(num_bytes, residual_TO))
    ):
        raise ValueError(
            f"linear_add_: the residual, {list(residual_TO.shape)} of {residual_TO.dtype} with "
            f"strides {residual_TO.stride()}, must be {list(shape)} of {x_TI.dtype}, its rows "
            f"contiguous and from multiples of {num_bytes} bytes"
        )


@functools.cache
def num_processors(device_index: int) -> int:
    """Multiprocessors of a Hopper GPU; 0 for others."""
    properties = torch.cuda.get_device_properties(device_index)
    return properties.multi_processor_count if properties.major == 9 else 0
