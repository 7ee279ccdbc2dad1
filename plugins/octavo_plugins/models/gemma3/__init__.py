"""The Gemma 3 text architecture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, ModelCapabilities, hookimpl

if TYPE_CHECKING:
    from octavo_registry import Model

OCTAVO_API = "1"


@hookimpl
def register_models(models: LazyRegistry[Model]) -> None:
    """Add Gemma3ForCausalLM."""
    models.add(
        "Gemma3ForCausalLM",
        "octavo_plugins.models.gemma3.model:Gemma3",
        capabilities=ModelCapabilities(
            quantizations=("*",),
            lora=True,
            tensor_parallel=True,
            pipeline_parallel=True,
            reference="transformers:Gemma3ForCausalLM",
            conformance="octavo_plugins.models.gemma3.conformance:VARIANTS",
        ),
    )
