"""The Mistral and Ministral architectures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, ModelCapabilities, hookimpl

if TYPE_CHECKING:
    from octavo_registry import Model

OCTAVO_API = "1"


@hookimpl
def register_models(models: LazyRegistry[Model]) -> None:
    """Add MistralForCausalLM and MinistralForCausalLM, whose layers need not all have a window."""
    for architecture, variants in (
        ("MistralForCausalLM", "VARIANTS"),
        ("MinistralForCausalLM", "MINISTRAL_VARIANTS"),
    ):
        models.add(
            architecture,
            "octavo_plugins.models.mistral.model:Mistral",
            capabilities=ModelCapabilities(
                quantizations=("*",),
                lora=True,
                tensor_parallel=True,
                pipeline_parallel=True,
                reference=f"transformers:{architecture}",
                conformance=f"octavo_plugins.models.mistral.conformance:{variants}",
            ),
        )
