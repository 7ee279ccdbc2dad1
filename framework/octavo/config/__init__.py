"""Configuration: frozen dataclasses by concern."""

from octavo.config.engine import (
    CacheConfig,
    EngineConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
)
from octavo.config.lora import LoRAConfig
from octavo.vllm_paths import names_of_vllm

__getattr__ = names_of_vllm(__name__)

__all__ = [
    "CacheConfig",
    "EngineConfig",
    "LoRAConfig",
    "ModelConfig",
    "ParallelConfig",
    "SchedulerConfig",
]
