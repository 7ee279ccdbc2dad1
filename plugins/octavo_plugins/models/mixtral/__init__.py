"""The Mixtral architecture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, ModelCapabilities, hookimpl

if TYPE_CHECKING:
    from octavo_registry import Model

OCTAVO_API = "1"


@hookimpl
def register_models(models: LazyRegistry[Model]) -> None:
    """Add MixtralForCausalLM."""
    models.add(
        "MixtralForCausalLM",
        "octavo_plugins.models.mixtral.model:Mixtral",
        capabilities=ModelCapabilities(
            quantizations=("*",),
            lora=True,
            tensor_parallel=True,
            pipeline_parallel=True,
            reference="transformers:MixtralForCausalLM",
            conformance="octavo_plugins.models.mixtral.conformance:VARIANTS",
        ),
    )
