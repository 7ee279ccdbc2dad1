"""Octavo: an LLM inference and serving engine. Names are imported when first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.async_llm import AsyncLLM
    from octavo.llm import LLM
    from octavo.outputs import CompletionOutput, RequestOutput
    from octavo.params import (
        BeamSearchParams,
        GuidedParams,
        LoRARequest,
        PoolingParams,
        SamplingParams,
    )

    AsyncLLMEngine = AsyncLLM
    LLMEngine = LLM

__version__ = "0.1.0"

_HOMES = {
    "LLM": "octavo.llm:LLM",
    "LLMEngine": "octavo.llm:LLM",
    "AsyncLLM": "octavo.async_llm:AsyncLLM",
    "AsyncLLMEngine": "octavo.async_llm:AsyncLLM",
    "BeamSearchParams": "octavo.params:BeamSearchParams",
    "CompletionOutput": "octavo.outputs:CompletionOutput",
    "GuidedParams": "octavo.params:GuidedParams",
    "LoRARequest": "octavo.params:LoRARequest",
    "PoolingParams": "octavo.params:PoolingParams",
    "RequestOutput": "octavo.outputs:RequestOutput",
    "SamplingParams": "octavo.params:SamplingParams",
}

__all__ = [
    "LLM",
    "AsyncLLM",
    "AsyncLLMEngine",
    "BeamSearchParams",
    "CompletionOutput",
    "GuidedParams",
    "LLMEngine",
    "LoRARequest",
    "PoolingParams",
    "RequestOutput",
    "SamplingParams",
    "__version__",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'octavo' has no attribute {name!r}")
    module, _, attribute = home.partition(":")
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted(__all__)
