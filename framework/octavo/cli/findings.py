"""What ``octavo doctor`` looks at."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from octavo.environment import JIT
from octavo.host_memory import host_memory
from octavo.wording import counted
from octavo_kernels.__main__ import all_specs
from octavo_kernels.build import (
    ALL_ARCHES,
    PREBUILT,
    KernelBuildError,
    arch_for,
    cache_folder,
    find_nvcc,
    source_hash,
)
from octavo_registry import PluginHost

GIB = 1024**3
OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 13)
OLDEST_CAPABILITY = (7, 5)
ENOUGH_SHARED_BYTES = 1 * GIB
ENOUGH_FILES = 4096
ENOUGH_HOST_BYTES = 4 * GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the report."""

    subject: str
    verdict: Literal["good", "note", "bad"]
    """"bad" keeps engines from running; a "note" limits them."""
    found: str
    advice: str = ""
    """What to do; empty when all is good."""


def examine(host: PluginHost) -> list[Finding]:
    """All findings, in the order in which one thing stands on another."""
    findings = [_python(), *_torch_and_driver()]
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            findings.append(_device(index))
        capabilities = {
            torch.cuda.get_device_capability(index) for index in range(torch.cuda.device_count())
        }
        findings.extend(_kernels(capability) for capability in sorted(capabilities))
    findings += [_host_memory(), _shared_memory(), _file_limit()]
    return findings + list(_plugins(host))


def _python() -> Finding:
    found = f"{platform.python_version()} at {sys.executable}"
    if OLDEST_PYTHON <= sys.version_info[:2] <= NEWEST_PYTHON:
        return Finding(subject="Python", verdict="good", found=found)
    return Finding(
        subject="Python", verdict="bad", found=found, advice="use Python 3.11, 3.12 or 3.13"
    )


def _torch_and_driver() -> Iterator[Finding]:
    built_for = torch.version.cuda
    driver = driver_version()
    found = f"{torch.__version__}, built for {f'CUDA {built_for}' if built_for else 'CPUs only'}"
    if driver is not None and built_for is None:
        advice = "this machine has an NVIDIA driver: install a torch that is built for CUDA"
        yield Finding(subject="torch", verdict="bad", found=found, advice=advice)
    else:
        yield Finding(subject="torch", verdict="good", found=found)
    if driver is None:
        yield Finding(
            subject="driver",
            verdict="note",
            found="no NVIDIA driver",
            advice="models run on the CPU; in a container, start it with --gpus all",
        )
        return
    found = f"up to CUDA {driver[0]}.{driver[1]}"
    needed = tuple(int(part) for part in (built_for or "0.0").split("."))
    if driver[0] < needed[0]:
        yield Finding(
            subject="driver",
            verdict="bad",
            found=found,
            advice=f"update it, or install a torch that is built for CUDA {driver[0]}",
        )
    elif built_for is not None and not torch.cuda.is_available():
        advice = "torch finds no device: look at nvidia-smi and CUDA_VISIBLE_DEVICES"
        yield Finding(subject="driver", verdict="bad", found=found, advice=advice)
    else:
        yield Finding(subject="driver", verdict="good", found=found)


def driver_version() -> tuple[int, int] | None:
    """The newest CUDA that the driver knows; None without a driver."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    version = ctypes.c_int()
    if library.cuDriverGetVersion(ctypes.byref(version)) != 0:
        return None
    return version.value // 1000, version.value % 1000 // 10


def _device(index: int) -> Finding:
    free, total = torch.cuda.mem_get_info(index)
    capability = torch.cuda.get_device_capability(index)
    found = (
        f"{torch.cuda.get_device_name(index)}, compute capability {capability[0]}.{capability[1]}, "
        f"{free / GIB:.1f} of {total / GIB:.1f} GiB free"
    )
    subject = f"GPU {index}"
    if capability < OLDEST_CAPABILITY:
        advice = "it is too old for the kernels; use --device cpu, or a GPU of 7.5 or newer"
        return Finding(subject=subject, verdict="bad", found=found, advice=advice)
    if free < total // 2:
        advice = "others use most of it: end them, or see what fits with octavo plan"
        return Finding(subject=subject, verdict="note", found=found, advice=advice)
    return Finding(subject=subject, verdict="good", found=found)


def _kernels(capability: tuple[int, int]) -> Finding:
    missing, usable = [], 0
    for spec in all_specs():
        try:
            arch = arch_for(spec, capability)
        except KernelBuildError:
            continue  # an op for other devices
        usable += 1
        file = Path(arch) / f"{spec.name}-{source_hash(spec)}.so"
        if not any((folder / file).exists() for folder in (PREBUILT, cache_folder())):
            missing.append((spec.name, arch))
    subject = f"kernels {capability[0]}.{capability[1]}"
    if not missing:
        return Finding(subject=subject, verdict="good", found=f"all {usable} are built")
    found = f"{usable - len(missing)} of {usable} are built"
    arch = missing[0][1]
    command = f"python -m octavo_kernels build --arch {arch}"
    if arch not in ALL_ARCHES:
        found += ", and only images come with them"
        command += f" (an nvcc that knows sm_{arch}: of CUDA 12.8 or later)"
    if JIT.text() == "0":
        advice = f"OCTAVO_JIT=0 forbids to build the others when they are needed; run {command}"
        return Finding(subject=subject, verdict="bad", found=found, advice=advice)
    if find_nvcc() is None:
        advice = f"there is no nvcc to build the others: install nvidia-cuda-nvcc, then {command}"
        return Finding(subject=subject, verdict="bad", found=found, advice=advice)
    advice = f"the others are built when first used; to do it now: {command}"
    return Finding(subject=subject, verdict="note", found=found, advice=advice)


def _host_memory() -> Finding:
    free = host_memory()
    found = f"{free / GIB:.1f} GiB to be had, {counted(os.cpu_count() or 1, 'processor')}"
    if free >= ENOUGH_HOST_BYTES:
        return Finding(subject="memory", verdict="good", found=found)
    advice = "loading and swapping need some: end other programs"
    return Finding(subject="memory", verdict="note", found=found, advice=advice)


def _shared_memory() -> Finding:
    subject = "shared memory"
    try:
        usage = shutil.disk_usage("/dev/shm")
    except OSError:
        return Finding(subject=subject, verdict="note", found="there is no /dev/shm")
    found = f"{usage.free / GIB:.2f} GiB in /dev/shm"
    if usage.free >= ENOUGH_SHARED_BYTES:
        return Finding(subject=subject, verdict="good", found=found)
    advice = "several GPUs talk through it: start the container with --shm-size=8g or --ipc=host"
    return Finding(subject=subject, verdict="note", found=found, advice=advice)


def _file_limit() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = soft == resource.RLIM_INFINITY
    found = "no limit" if unlimited else f"{soft} at a time"
    if unlimited or soft >= ENOUGH_FILES:
        return Finding(subject="open files", verdict="good", found=found)
    most = "65536" if hard == resource.RLIM_INFINITY else str(min(hard, 65536))
    advice = f"each connection is one: ulimit -n {most}"
    return Finding(subject="open files", verdict="note", found=found, advice=advice)


def _plugins(host: PluginHost) -> Iterator[Finding]:
    for record in host.plugins:
        origin = record.distribution or f"module {record.module}"
        version = f" {record.version}" if record.version else ""
        yield Finding(subject="plugin", verdict="good", found=f"{record.name} of {origin}{version}")
