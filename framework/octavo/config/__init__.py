"""Configuration: frozen dataclasses by concern, and what a model's folder makes of them."""

from octavo.config.engine import (
    CacheConfig,
    EngineConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
)
from octavo.config.lora import LoRAConfig
from octavo.config.model_folder import ModelFolder, open_model

__all__ = [
    "CacheConfig",
    "EngineConfig",
    "LoRAConfig",
    "ModelConfig",
    "ModelFolder",
    "ParallelConfig",
    "SchedulerConfig",
    "open_model",
]
