"""Tensors for tests of kernels, and how near to a reference a result is."""

from __future__ import annotations

import torch
from torch import Tensor


def draw(*shape: int, dtype: torch.dtype = torch.bfloat16, device: str = "cuda") -> Tensor:
    """Random values whose products along the last axis stay near one."""
    return torch.randn(shape, device=device).mul_(shape[-1] ** -0.25).to(dtype)


def poison(*shape: int, dtype: torch.dtype = torch.bfloat16) -> None:
    """Leave NaN in the memory that the allocator hands out next."""
    torch.full(shape, torch.nan, dtype=dtype, device="cuda")


def assert_near(
    out: Tensor, expected: Tensor, *, norm: float = 4e-3, largest: float = 2e-2
) -> None:
    """Compare errors' norm and their largest with the expected's; the defaults are for bfloat16
    that is rounded once."""
    error = out.float() - expected.float()
    assert float(error.norm() / expected.float().norm()) <= norm
    assert float(error.abs().max() / expected.float().abs().max()) <= largest
