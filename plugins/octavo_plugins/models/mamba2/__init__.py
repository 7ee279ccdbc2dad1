"""The Mamba 2 architecture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, ModelCapabilities, hookimpl

if TYPE_CHECKING:
    from octavo_registry import Model

OCTAVO_API = "1"


@hookimpl
def register_models(models: LazyRegistry[Model]) -> None:
    """Add Mamba2ForCausalLM."""
    models.add(
        "Mamba2ForCausalLM",
        "octavo_plugins.models.mamba2.model:Mamba2",
        capabilities=ModelCapabilities(
            reference="transformers:Mamba2ForCausalLM",
            conformance="octavo_plugins.models.mamba2.conformance:VARIANTS",
        ),
    )
