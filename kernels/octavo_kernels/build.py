"""Compiles an op's CUDA sources into one shared library per architecture, and finds it again.

A library is looked for among the prebuilt ones of this package, then in the user's cache, and is
built there with nvcc if it is in neither. Its name has the hash of all that it is made of, so a
stale one is never loaded.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Mapping
from ctypes import c_float, c_int, c_longlong, c_void_p
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parent
PREBUILT = PACKAGE / "prebuilt"
ALL_ARCHES = ("75", "80", "89", "90a")
"""Architectures that every kernel compiles for unless its spec names fewer."""
NEWER_ARCHES = ("100", "120")
"""Architectures that images have besides, of kernels that are for all; CUDA 12.8 knows them."""

P, I, L, F = c_void_p, c_int, c_longlong, c_float  # noqa: E741 (reads well beside P, L, F)
"""Argument types of kernel functions: pointer, int, long long, float."""


class KernelBuildError(RuntimeError):
    """A library is missing and cannot be built; the message says how to get it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KernelSpec:
    """An op's library: the folder's name, what is compiled, and the functions it exports.

    Each function returns a cudaError_t; its last argument is the stream.
    """

    name: str
    functions: Mapping[str, tuple[Any, ...]]
    """Argument types by name: P, I, L, F."""
    sources: tuple[str, ...] = ("kernel.cu",)
    arches: tuple[str, ...] = ALL_ARCHES
    """Architectures it can be compiled for; the one at hand must be among them."""
    flags: tuple[str, ...] = field(default=())


def can_be_built_for(spec: KernelSpec, arch: str) -> bool:
    """Whether its sources are for an architecture: one that it names, or a newer one than all."""
    number = arch.rstrip("abcdefghijklmnopqrstuvwxyz")
    is_newer = number.isdecimal() and int(number) > int(ALL_ARCHES[-1].rstrip("a"))
    return arch in spec.arches or (is_newer and spec.arches == ALL_ARCHES)


def arch_for(spec: KernelSpec, capability: tuple[int, int]) -> str:
    """The architecture whose library runs on a device of that compute capability.

    A device runs what was built for its own major version and no later minor one (8.6 runs 80);
    devices newer than all that are listed get a library of their own, if the kernel is for any.
    """
    major, minor = capability
    own = f"{major}{minor}"
    arches = (*ALL_ARCHES, *NEWER_ARCHES) if spec.arches == ALL_ARCHES else spec.arches
    if f"{own}a" in arches:
        return f"{own}a"
    older = [arch for arch in arches if arch[:-1] == str(major) and arch <= own]
    if older:
        return older[-1]
    if capability > (9, 0) and spec.arches == ALL_ARCHES:
        return own
    raise KernelBuildError(
        f"kernel {spec.name!r} is for sm_{', sm_'.join(spec.arches)}; this device's compute "
        f"capability is {major}.{minor}"
    )


def cache_folder() -> Path:
    """Where libraries built on first use are kept."""
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "octavo" / "kernels"
    return Path(os.environ.get("OCTAVO_KERNEL_CACHE", default))


def library_path(spec: KernelSpec, arch: str) -> Path:
    """The spec's library for ``arch``, built now if need be."""
    file = Path(arch) / f"{spec.name}-{source_hash(spec)}.so"
    for folder in (PREBUILT, cache_folder()):
        if (folder / file).exists():
            return folder / file
    if os.environ.get("OCTAVO_JIT") == "0":
        raise KernelBuildError(
            f"kernel {spec.name!r} is not built for sm_{arch} and OCTAVO_JIT=0 forbids to build it "
            f"now; run: python -m octavo_kernels build --arch {arch}"
        )
    return build(spec, arch, cache_folder())


def build(spec: KernelSpec, arch: str, folder: Path) -> Path:
    """Compile into ``folder``; of several processes that want it, one compiles."""
    path = folder / arch / f"{spec.name}-{source_hash(spec)}.so"
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            _compile(spec, arch, path)
    return path


@functools.cache
def source_hash(spec: KernelSpec) -> str:
    """Hash of the sources, the shared headers and the flags."""
    digest = hashlib.sha256(repr((spec.name, spec.flags)).encode())
    folder = PACKAGE / spec.name
    headers = sorted([*(PACKAGE / "include").glob("*.cuh"), *folder.glob("*.cuh")])
    for file in [*(folder / source for source in spec.sources), *headers]:
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def find_nvcc() -> str | None:
    """The compiler of CUDA_HOME, of PATH, of the usual place, or of a Python package."""
    candidates = [
        Path(os.environ["CUDA_HOME"]) / "bin" / "nvcc" if "CUDA_HOME" in os.environ else None,
        Path(found) if (found := shutil.which("nvcc")) else None,
        Path("/usr/local/cuda/bin/nvcc"),
        *Path(sysconfig.get_path("purelib")).glob("nvidia/cu*/bin/nvcc"),
    ]
    return next((str(path) for path in candidates if path is not None and path.exists()), None)


def compile_command(spec: KernelSpec, arch: str, output: Path) -> list[str]:
    """What builds the library; nvcc is named as such where there is none."""
    return [
        find_nvcc() or "nvcc",
        *("-O3", "-std=c++17", "-shared", "-Xcompiler", "-fPIC,-fvisibility=hidden"),
        *("--expt-relaxed-constexpr", "-lineinfo", "-t", str(os.cpu_count() or 1)),
        f"-gencode=arch=compute_{arch},code=sm_{arch}",
        f"-DOCTAVO_ARCH={arch.rstrip('a')}",
        f"-I{PACKAGE / 'include'}",
        *spec.flags,
        *(str(PACKAGE / spec.name / source) for source in spec.sources),
        *("-o", str(output)),
    ]


def _compile(spec: KernelSpec, arch: str, path: Path) -> None:
    handle, name = tempfile.mkstemp(suffix=".so", dir=path.parent)
    os.close(handle)
    output = Path(name)
    command = compile_command(spec, arch, output)
    try:
        if find_nvcc() is None:
            raise KernelBuildError(
                f"kernel {spec.name!r} is not built for sm_{arch} and there is no nvcc; install "
                "the CUDA toolkit or the package nvidia-cuda-nvcc, then: " + " ".join(command)
            )
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise KernelBuildError(f"{' '.join(command)}\n{done.stdout}{done.stderr}".strip())
        output.chmod(0o755)
        output.replace(path)
    finally:
        output.unlink(missing_ok=True)
