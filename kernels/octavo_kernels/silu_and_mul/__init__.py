"""Gated SiLU. Axis suffixes: T tokens, E twice the intermediate size, I the intermediate size."""

from torch import Tensor

from octavo_kernels.silu_and_mul import reference


def silu_and_mul(gate_up_TE: Tensor) -> Tensor:
    """Return silu(gate) * up for gate and up side by side in the last axis."""
    if gate_up_TE.shape[-1] % 2:
        raise ValueError(
            f"silu_and_mul: the last axis of {list(gate_up_TE.shape)} must be even: gate, then up"
        )
    return reference.silu_and_mul(gate_up_TE)


__all__ = ["silu_and_mul"]
