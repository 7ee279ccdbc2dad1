"""The Granite architecture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, ModelCapabilities, hookimpl

if TYPE_CHECKING:
    from octavo_registry import Model

OCTAVO_API = "1"


@hookimpl
def register_models(models: LazyRegistry[Model]) -> None:
    """Add GraniteForCausalLM."""
    models.add(
        "GraniteForCausalLM",
        "octavo_plugins.models.granite.model:Granite",
        capabilities=ModelCapabilities(
            quantizations=("*",),
            lora=True,
            tensor_parallel=True,
            pipeline_parallel=True,
            reference="transformers:GraniteForCausalLM",
            conformance="octavo_plugins.models.granite.conformance:VARIANTS",
        ),
    )
