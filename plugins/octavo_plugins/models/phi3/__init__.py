"""The Phi 3 and 4 architecture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, ModelCapabilities, hookimpl

if TYPE_CHECKING:
    from octavo_registry import Model

OCTAVO_API = "1"


@hookimpl
def register_models(models: LazyRegistry[Model]) -> None:
    """Add Phi3ForCausalLM."""
    models.add(
        "Phi3ForCausalLM",
        "octavo_plugins.models.phi3.model:Phi3",
        capabilities=ModelCapabilities(
            quantizations=("*",),
            lora=True,
            tensor_parallel=True,
            pipeline_parallel=True,
            reference="transformers:Phi3ForCausalLM",
            conformance="octavo_plugins.models.phi3.conformance:VARIANTS",
        ),
    )
