"""Loads an op's library for a device and calls its functions."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import torch

from octavo_kernels.build import KernelSpec, arch_for, library_path


class KernelError(RuntimeError):
    """A kernel could not be launched."""


DTYPE_CODES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, torch.float8_e4m3fn: 3}
"""How kernels are told an element type; as in include/octavo.cuh."""

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
"""What activations may be."""


@functools.cache
def library(spec: KernelSpec, device_index: int) -> Any:
    """The spec's functions as attributes, for that CUDA device; built on first use if need be."""
    arch = arch_for(spec, torch.cuda.get_device_capability(device_index))
    loaded = ctypes.CDLL(str(library_path(spec, arch)))
    for name, argument_types in spec.functions.items():
        function = getattr(loaded, name)
        function.argtypes = [*argument_types, ctypes.c_void_p]
        function.restype = _raise_for
    return loaded


def stream_of(device_index: int) -> int:
    """The current stream of a device, as kernels take it."""
    # torch.cuda.current_stream makes an object: 1.5 us of the 3 us that a launch costs.
    return int(torch._C._cuda_getCurrentRawStream(device_index))


@functools.lru_cache(maxsize=1024)
def ints(values: tuple[int, ...]) -> ctypes.Array[ctypes.c_int]:
    """For a function that reads them before it returns."""
    return (ctypes.c_int * len(values))(*values)


def _raise_for(code: int) -> int:
    """ctypes calls this with a function's result."""
    if code != 0:
        raise KernelError(
            f"a kernel launch failed with CUDA error {code}: see cudaError_t; for the place, run "
            "with CUDA_LAUNCH_BLOCKING=1 or under compute-sanitizer"
        )
    return code
