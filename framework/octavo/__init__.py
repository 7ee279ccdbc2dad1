"""Octavo: an LLM inference and serving engine. Names are imported when first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from octavo.version import __version__
from octavo.vllm_paths import find_vllm_paths, missing_name

if TYPE_CHECKING:
    from octavo.cli.engine_args import AsyncEngineArgs, EngineArgs
    from octavo.frontend.async_llm import AsyncLLM
    from octavo.frontend.async_llm_engine import AsyncLLMEngine
    from octavo.frontend.llm import LLM
    from octavo.frontend.llm_engine import LLMEngine
    from octavo.inputs import PromptType, TextPrompt, TokensPrompt
    from octavo.outputs import (
        CompletionOutput,
        EmbeddingOutput,
        EmbeddingRequestOutput,
        PoolingOutput,
        PoolingRequestOutput,
        RequestOutput,
    )
    from octavo.params import (
        BeamSearchParams,
        GuidedParams,
        LoRARequest,
        PoolingParams,
        SamplingParams,
    )

_HOMES = {
    "LLM": "octavo.frontend.llm:LLM",
    "LLMEngine": "octavo.frontend.llm_engine:LLMEngine",
    "EngineArgs": "octavo.cli.engine_args:EngineArgs",
    "AsyncEngineArgs": "octavo.cli.engine_args:AsyncEngineArgs",
    "AsyncLLM": "octavo.frontend.async_llm:AsyncLLM",
    "AsyncLLMEngine": "octavo.frontend.async_llm_engine:AsyncLLMEngine",
    "BeamSearchParams": "octavo.params:BeamSearchParams",
    "CompletionOutput": "octavo.outputs:CompletionOutput",
    "EmbeddingOutput": "octavo.outputs:EmbeddingOutput",
    "EmbeddingRequestOutput": "octavo.outputs:EmbeddingRequestOutput",
    "GuidedParams": "octavo.params:GuidedParams",
    "LoRARequest": "octavo.params:LoRARequest",
    "PoolingOutput": "octavo.outputs:PoolingOutput",
    "PoolingParams": "octavo.params:PoolingParams",
    "PoolingRequestOutput": "octavo.outputs:PoolingRequestOutput",
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
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "EngineArgs",
    "GuidedParams",
    "LLMEngine",
    "LoRARequest",
    "PoolingOutput",
    "PoolingParams",
    "PoolingRequestOutput",
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
