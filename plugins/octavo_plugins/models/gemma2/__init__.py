"""The Gemma 2 architecture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, ModelCapabilities, hookimpl

if TYPE_CHECKING:
    from octavo_registry import Model

OCTAVO_API = "1"


@hookimpl
def register_models(models: LazyRegistry[Model]) -> None:
    """Add Gemma2ForCausalLM."""
    models.add(
        "Gemma2ForCausalLM",
        "octavo_plugins.models.gemma2.model:Gemma2",
        capabilities=ModelCapabilities(
            quantizations=("*",),
            lora=True,
            tensor_parallel=True,
            pipeline_parallel=True,
            reference="transformers:Gemma2ForCausalLM",
            conformance="octavo_plugins.models.gemma2.conformance:VARIANTS",
        ),
    )
