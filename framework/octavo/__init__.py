"""Octavo: an LLM inference and serving engine. Names are imported when first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from octavo.vllm_paths import find_vllm_paths, missing_name

if TYPE_CHECKING:
    from octavo.async_llm import AsyncLLM
    from octavo.async_llm_engine import AsyncLLMEngine
    from octavo.engine_args import AsyncEngineArgs, EngineArgs
    from octavo.inputs import PromptType, TextPrompt, TokensPrompt
    from octavo.llm import LLM
    from octavo.llm_engine import LLMEngine
    from octavo.outputs import CompletionOutput, RequestOutput
    from octavo.params import (
        BeamSearchParams,
        GuidedParams,
        LoRARequest,
        PoolingParams,
        SamplingParams,
    )

__version__ = "0.1.0"

_HOMES = {
    "LLM": "octavo.llm:LLM",
    "LLMEngine": "octavo.llm_engine:LLMEngine",
    "EngineArgs": "octavo.engine_args:EngineArgs",
    "AsyncEngineArgs": "octavo.engine_args:AsyncEngineArgs",
    "AsyncLLM": "octavo.async_llm:AsyncLLM",
    "AsyncLLMEngine": "octavo.async_llm_engine:AsyncLLMEngine",
    "BeamSearchParams": "octavo.params:BeamSearchParams",
    "CompletionOutput": "octavo.outputs:CompletionOutput",
    "GuidedParams": "octavo.params:GuidedParams",
    "LoRARequest": "octavo.params:LoRARequest",
    "PoolingParams": "octavo.params:PoolingParams",
    "PromptType": "octavo.inputs:PromptType",
    "RequestOutput": "octavo.outputs:RequestOutput",
    "SamplingParams": "octavo.params:SamplingParams",
    "TextPrompt": "octavo.inputs:TextPrompt",
    "TokensPrompt": "octavo.inputs:TokensPrompt",
}
find_vllm_paths()

__all__ = [
    "LLM",
    "AsyncEngineArgs",
    "AsyncLLM",
    "AsyncLLMEngine",
    "BeamSearchParams",
    "CompletionOutput",
    "EngineArgs",
    "GuidedParams",
    "LLMEngine",
    "LoRARequest",
    "PoolingParams",
    "PromptType",
    "RequestOutput",
    "SamplingParams",
    "TextPrompt",
    "TokensPrompt",
    "__version__",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise missing_name("octavo", name)
    module, _, attribute = home.partition(":")
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted(__all__)
