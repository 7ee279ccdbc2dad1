"""Rotary position embedding. Axis suffixes: T tokens, H heads, D head dim, F frequencies."""

from torch import Tensor

from octavo_kernels.rotary import reference


def rotary_(x_THD: Tensor, cos_TF: Tensor, sin_TF: Tensor) -> Tensor:
    """Rotate the first 2 F entries of every head in place, each half against the other; return x.

    Queries and keys that lie side by side are rotated in one call.
    """
    num_tokens, _, head_dim = x_THD.shape
    if cos_TF.shape != sin_TF.shape or cos_TF.shape[0] != num_tokens:
        raise ValueError(
            f"rotary_: cos {list(cos_TF.shape)} and sin {list(sin_TF.shape)} must have one row for "
            f"each of the {num_tokens} tokens of x"
        )
    if 2 * cos_TF.shape[1] > head_dim:
        raise ValueError(
            f"rotary_: {cos_TF.shape[1]} frequencies need {2 * cos_TF.shape[1]} entries per head, "
            f"x has {head_dim}"
        )
    return reference.rotary_(x_THD, cos_TF, sin_TF)


__all__ = ["rotary_"]
