"""Root-mean-square normalisation over the last axis. Axis suffixes: T tokens, D hidden."""

import torch
from torch import Tensor

from octavo_kernels.build import F, I, KernelSpec, L, P
from octavo_kernels.library import DTYPE_CODES, FLOATS, library, stream_of
from octavo_kernels.rms_norm import reference

SPEC = KernelSpec(
    name="rms_norm",
    functions={"octavo_rms_norm": (P, P, P, P, L, I, L, L, F, I)},
)


def rms_norm(x_TD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """Return the normalised and weighted x; x may have any leading axes."""
    size = x_TD.shape[-1]
    if weight_D.shape != (size,):
        raise _misfit("rms_norm", x_TD, weight_D)
    if not x_TD.is_cuda:
        return reference.rms_norm(x_TD, weight_D, eps)
    if x_TD.dim() == 2:
        return _launch(x_TD, None, weight_D, eps)
    return _launch(x_TD.reshape(-1, size), None, weight_D, eps).view(x_TD.shape)


def add_rms_norm(x_TD: Tensor, residual_TD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """Add x to the residual in place and return the sum normalised and weighted."""
    if x_TD.dim() != 2 or weight_D.shape != x_TD.shape[1:]:
        raise _misfit("add_rms_norm", x_TD, weight_D)
    if residual_TD.shape != x_TD.shape or residual_TD.dtype is not x_TD.dtype:
        raise ValueError(
            f"add_rms_norm: the residual, {list(residual_TD.shape)} of {residual_TD.dtype}, must "
            f"be like x, {list(x_TD.shape)} of {x_TD.dtype}"
        )
    if not x_TD.is_cuda:
        return reference.add_rms_norm(x_TD, residual_TD, weight_D, eps)
    return _launch(x_TD, residual_TD, weight_D, eps)


def _misfit(function: str, x_TD: Tensor, weight_D: Tensor) -> ValueError:
    return ValueError(
        f"{function}: weight of shape {list(weight_D.shape)} does not fit x of shape "
        f"{list(x_TD.shape)}; it must have x's last axis"
    )


def _launch(x_TD: Tensor, residual_TD: Tensor | None, weight_D: Tensor, eps: float) -> Tensor:
    dtype, (num_tokens, size) = x_TD.dtype, x_TD.shape
    x_stride, x_step = x_TD.stride()
    residual_stride, residual_step = (0, 1) if residual_TD is None else residual_TD.stride()
    if weight_D.dtype is not dtype or dtype not in FLOATS:
        raise ValueError(
            f"rms_norm: x is {dtype} and weight {weight_D.dtype}; both must be the same of "
            "float32, float16, bfloat16"
        )
    if x_step != 1 or residual_step != 1 or not weight_D.is_contiguous():
        raise ValueError(
            f"rms_norm: the last axes of x, residual and weight have steps {x_step}, "
            f"{residual_step} and {weight_D.stride(0)}; they must be 1"
        )
    # Contiguous, as x's last axis is; three times as fast as torch.empty with a shape (0.8 us).
    out_TD = torch.empty_like(x_TD)
    if num_tokens and size:
        index = x_TD.get_device()
        library(SPEC, index).octavo_rms_norm(
            x_TD.data_ptr(),
            None if residual_TD is None else residual_TD.data_ptr(),
            weight_D.data_ptr(),
            out_TD.data_ptr(),
            num_tokens,
            size,
            x_stride,
            residual_stride,
            eps,
            DTYPE_CODES[dtype],
            stream_of(index),
        )
    return out_TD


__all__ = ["SPEC", "add_rms_norm", "rms_norm"]
