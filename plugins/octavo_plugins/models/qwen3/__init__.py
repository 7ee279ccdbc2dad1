"""The Qwen 3 architecture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, ModelCapabilities, hookimpl

if TYPE_CHECKING:
    from octavo_registry import Model

OCTAVO_API = "1"


@hookimpl
def register_models(models: LazyRegistry[Model]) -> None:
    """Add Qwen3ForCausalLM."""
    models.add(
        "Qwen3ForCausalLM",
        "octavo_plugins.models.qwen3.model:Qwen3",
        capabilities=ModelCapabilities(
            quantizations=("*",),
            lora=True,
            tensor_parallel=True,
            pipeline_parallel=True,
            reference="transformers:Qwen3ForCausalLM",
            conformance="octavo_plugins.models.qwen3.conformance:VARIANTS",
        ),
    )
