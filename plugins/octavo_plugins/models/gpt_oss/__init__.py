"""The gpt-oss architecture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, ModelCapabilities, hookimpl

if TYPE_CHECKING:
    from octavo_registry import Model

OCTAVO_API = "1"


@hookimpl
def register_models(models: LazyRegistry[Model]) -> None:
    """Add GptOssForCausalLM."""
    models.add(
        "GptOssForCausalLM",
        "octavo_plugins.models.gpt_oss.model:GptOss",
        capabilities=ModelCapabilities(
            quantizations=("*",),
            lora=True,
            tensor_parallel=True,
            pipeline_parallel=True,
            reference="transformers:GptOssForCausalLM",
            conformance="octavo_plugins.models.gpt_oss.conformance:VARIANTS",
        ),
    )
