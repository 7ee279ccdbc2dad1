"""Root-mean-square normalisation over the last axis. Axis suffixes: T tokens, D hidden."""

from torch import Tensor

from octavo_kernels.rms_norm import reference


def rms_norm(x_TD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """Return the normalised and weighted x; x may have any leading axes."""
    if weight_D.shape != x_TD.shape[-1:]:
        raise ValueError(
            f"rms_norm: weight of shape {list(weight_D.shape)} does not fit x of shape "
            f"{list(x_TD.shape)}; it must have x's last axis"
        )
    return reference.rms_norm(x_TD, weight_D, eps)


__all__ = ["rms_norm"]
