"""The OLMo 2 architecture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, ModelCapabilities, hookimpl

if TYPE_CHECKING:
    from octavo_registry import Model

OCTAVO_API = "1"


@hookimpl
def register_models(models: LazyRegistry[Model]) -> None:
    """Add Olmo2ForCausalLM."""
    models.add(
        "Olmo2ForCausalLM",
        "octavo_plugins.models.olmo2.model:Olmo2",
        capabilities=ModelCapabilities(
            quantizations=("*",),
            lora=True,
            tensor_parallel=True,
            pipeline_parallel=True,
            reference="transformers:Olmo2ForCausalLM",
            conformance="octavo_plugins.models.olmo2.conformance:VARIANTS",
        ),
    )
