"""An adapter's matrices in one run of bytes."""

from __future__ import annotations

import pytest
import torch

from octavo.adapters.packed import pack
from octavo.errors import AdapterError
from octavo.steps.matrices import matrices
from octavo_registry import Adapter


def adapter_of(scaling: float) -> Adapter:
    generator = torch.Generator().manual_seed(0)
    down = {name: torch.randn(rank, 5, generator=generator) for name, rank in RANKS.items()}
    up = {name: torch.randn(7, rank, generator=generator) for name, rank in RANKS.items()}
    scalings = dict.fromkeys(RANKS, scaling)
    return Adapter(rank=4, scaling=scalings, down=down, up=up, content_hash="h")


RANKS = {"a": 2, "b": 4, "c": 1}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_matrices_come_back_in_the_models_dtype_with_the_scaling_in_them(dtype: str) -> None:
    adapter = adapter_of(2.5)
    packed = pack(adapter, dtype)
    wanted = getattr(torch, dtype)
    found = {name: (down, up) for name, down, up in matrices(packed)}
    assert list(found) == list(RANKS)
    for name, (down_RI, up_RO) in found.items():
        assert torch.equal(down_RI, adapter.down[name].to(wanted))
        assert torch.equal(up_RO, (adapter.up[name].mT * 2.5).to(wanted))
    assert packed.data.nbytes == sum(rank * (5 + 7) for rank in RANKS.values()) * wanted.itemsize


def test_numbers_that_the_models_dtype_does_not_hold_are_refused_by_name() -> None:
    with pytest.raises(AdapterError, match=r"matrices of a, with a scaling of 100000, .* float16"):
        pack(adapter_of(1e5), "float16")
    pack(adapter_of(1e5), "bfloat16")
