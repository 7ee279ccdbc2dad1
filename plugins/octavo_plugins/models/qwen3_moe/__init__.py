"""The Qwen3 mixture-of-experts architecture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, ModelCapabilities, hookimpl

if TYPE_CHECKING:
    from octavo_registry import Model

OCTAVO_API = "1"


@hookimpl
def register_models(models: LazyRegistry[Model]) -> None:
    """Add Qwen3MoeForCausalLM."""
    models.add(
        "Qwen3MoeForCausalLM",
        "octavo_plugins.models.qwen3_moe.model:Qwen3Moe",
        capabilities=ModelCapabilities(
            quantizations=("*",),
            lora=True,
            tensor_parallel=True,
            pipeline_parallel=True,
            reference="transformers:Qwen3MoeForCausalLM",
            conformance="octavo_plugins.models.qwen3_moe.conformance:VARIANTS",
        ),
    )
