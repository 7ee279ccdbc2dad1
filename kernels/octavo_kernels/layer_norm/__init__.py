"""Layer normalisation over the last axis. Axis suffixes: T tokens, D hidden."""

from torch import Tensor

from octavo_kernels.build import F, I, KernelSpec, L, P
from octavo_kernels.layer_norm import reference
from octavo_kernels.library import DTYPE_CODES, FLOATS, library, stream_of

SPEC = KernelSpec(
    name="layer_norm",
    functions={"octavo_layer_norm": (P, P, P, P, L, I, L, F, I)},
)


def layer_norm(x_TD: Tensor, weight_D: Tensor | None, bias_D: Tensor | None, eps: float) -> Tensor:
    """Return the normalised x, weighted and moved where there are a weight and a bias.

    x may have any leading axes; where entries of a row do not stand together it is copied.
    """
    size = x_TD.shape[-1]
    for name, each_D in (("weight", weight_D), ("bias", bias_D)):
        if each_D is not None and (each_D.shape != (size,) or each_D.dtype is not x_TD.dtype):
            raise ValueError(
                f"layer_norm: the {name}, {list(each_D.shape)} of {each_D.dtype}, must be "
                f"[{size}] of {x_TD.dtype}, as x's last axis"
            )
    if not x_TD.is_cuda:
        return reference.layer_norm(x_TD, weight_D, bias_D, eps)
    if x_TD.dim() == 2:
        return _launch(x_TD, weight_D, bias_D, eps)
    return _launch(x_TD.reshape(-1, size), weight_D, bias_D, eps).view(x_TD.shape)


def _launch(x_TD: Tensor, weight_D: Tensor | None, bias_D: Tensor | None, eps: float) -> Tensor:
    if x_TD.stride(1) != 1:
        x_TD = x_TD.contiguous()
    dtype, (num_tokens, size) = x_TD.dtype, x_TD.shape
    parameters = [each_D for each_D in (weight_D, bias_D) if each_D is not None]
    if dtype not in FLOATS or not all(each_D.is_contiguous() for each_D in parameters):
        raise ValueError(
            f"layer_norm: x is {dtype}, and must be float32, float16 or bfloat16; weight and bias "
            "must be contiguous"
        )
    out_TD = x_TD.new_empty((num_tokens, size))
    if num_tokens and size:
        index = x_TD.get_device()
        library(SPEC, index).octavo_layer_norm(
            x_TD.data_ptr(),
            None if weight_D is None else weight_D.data_ptr(),
            None if bias_D is None else bias_D.data_ptr(),
            out_TD.data_ptr(),
            num_tokens,
            size,
            x_TD.stride(0),
            eps,
            DTYPE_CODES[dtype],
            stream_of(index),
        )
    return out_TD


__all__ = ["SPEC", "layer_norm"]
