"""The device that a memory budget is made for, whether it is here or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from octavo.cache.budget import GIB, DeviceMemory
from octavo.config import EngineConfig
from octavo.execution.worker import choose_device, device_memory
from octavo.host_memory import host_memory

CONTEXT_BYTES: Final = GIB // 2
"""What a CUDA context takes of a device that is not at hand to be asked (0.5 GiB on an H200)."""
CPU_NAME: Final = "this machine's CPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The device that is planned for."""

    name: str
    device: torch.device
    """Chooses the attention backends; a CPU stands in for a GPU that is not here."""
    memory: DeviceMemory | None
    """As it is before anything is loaded; None: a CPU, whose memory is the machine's."""
    available_bytes: int
    """What may be used now, all told."""

    @property
    def slots_of(self) -> str:
        """The kind of device whose default number of rows is meant."""
        return "cpu" if self.memory is None else "cuda"


def find_target(config: EngineConfig, memory_gib: float | None) -> Target:
    """The config's device, or one of so many GiB that need not be here."""
    device = choose_device(config.model.device)
    usable = config.cache.gpu_memory_utilization
    if memory_gib is not None:
        total = int(memory_gib * GIB)
        memory = DeviceMemory(total=total, free=max(total - CONTEXT_BYTES, 0))
        available = max(int(total * usable) - CONTEXT_BYTES, 0)
        return Target(
            name=f"a device of {memory_gib:g} GiB",
            device=device,
            memory=memory,
            available_bytes=available,
        )
    if device.type == "cpu":
        ranks = config.parallel.num_devices
        return Target(
            name=CPU_NAME if ranks == 1 else f"{CPU_NAME} as one of {ranks} ranks",
            device=device,
            memory=None,
            available_bytes=host_memory() // ranks,
        )
    here = device_memory(device)
    return Target(
        name=torch.cuda.get_device_name(device),
        device=device,
        memory=here,
        available_bytes=max(int(here.total * usable) - (here.total - here.free), 0),
    )
