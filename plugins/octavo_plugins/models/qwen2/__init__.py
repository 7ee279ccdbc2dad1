"""The Qwen 2 and 2.5 architecture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, ModelCapabilities, hookimpl

if TYPE_CHECKING:
    from octavo_registry import Model

OCTAVO_API = "1"


@hookimpl
def register_models(models: LazyRegistry[Model]) -> None:
    """Add Qwen2ForCausalLM."""
    models.add(
        "Qwen2ForCausalLM",
        "octavo_plugins.models.qwen2.model:Qwen2",
        capabilities=ModelCapabilities(
            quantizations=("*",),
            lora=True,
            tensor_parallel=True,
            pipeline_parallel=True,
            reference="transformers:Qwen2ForCausalLM",
            conformance="octavo_plugins.models.qwen2.conformance:VARIANTS",
        ),
    )
