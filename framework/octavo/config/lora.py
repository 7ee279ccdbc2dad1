"""LoRA adapters: whether they may be used, and the memory that they get."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.config.checks import check_range
from octavo.errors import ConfigError

RANK_OF_MOST = 16
"""The pool is sized by this rank for ``max_loras``; adapters of others take what they need."""
HOST_COPIES = 4
MAX_RANK_ROWS = 10240
"""What ``octavo_kernels.lora`` takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoRAConfig:
    """Adapters over one base model, chosen by request."""

    enable_lora: bool = False
    """Whether requests may name an adapter; its pool takes memory of the device."""
    max_loras: int = 8
    """Adapters of rank 16 that the device holds at a time; more take turns."""
    lora_pool_rank: int | None = None
    """Sum of the ranks of the adapters that the device holds at a time, whatever they are one by
    one; None: 16 times max_loras."""
    max_lora_rank: int | None = None
    """Adapters of a higher rank are refused; None: what the pool holds."""
    lora_experts: bool = False
    """Whether adapters may change experts; the pool then has rank rows for each expert."""
    max_cpu_loras: int | None = None
    """Adapters that are kept in host memory, those used last, besides what requests wait or run
    with; None: 4 times max_loras."""

    def __post_init__(self) -> None:
        check_range("max_loras", self.max_loras, 1, MAX_RANK_ROWS // RANK_OF_MOST)
        for name in ("lora_pool_rank", "max_lora_rank"):
            if getattr(self, name) is not None:
                check_range(name, getattr(self, name), 1, MAX_RANK_ROWS)
        if self.max_cpu_loras is not None:
            check_range("max_cpu_loras", self.max_cpu_loras, 1)
        if self.enable_lora and (self.max_lora_rank or 0) > self.num_rank_rows:
            raise ConfigError(
                f"max_lora_rank={self.max_lora_rank} is above the pool's {self.num_rank_rows} rank "
                "rows; give lora_pool_rank"
            )

    @property
    def num_rank_rows(self) -> int:
        """Rank rows of the pool; 0 without adapters."""
        if not self.enable_lora:
            return 0
        return self.lora_pool_rank or RANK_OF_MOST * self.max_loras

    @property
    def highest_rank(self) -> int:
        """The highest rank of an adapter that is taken."""
        return min(self.max_lora_rank or self.num_rank_rows, self.num_rank_rows)

    @property
    def num_host_adapters(self) -> int:
        """Adapters in host memory at most."""
        return self.max_cpu_loras or HOST_COPIES * self.max_loras
