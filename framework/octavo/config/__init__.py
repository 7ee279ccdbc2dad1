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
from octavo.vllm_paths import names_of_vllm

__getattr__ = names_of_vllm(__name__)

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
