"""The DeepSeek architectures with latent attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, ModelCapabilities, hookimpl

if TYPE_CHECKING:
    from octavo_registry import Model

OCTAVO_API = "1"


@hookimpl
def register_models(models: LazyRegistry[Model]) -> None:
    """Add DeepseekV2ForCausalLM and DeepseekV3ForCausalLM."""
    for version in ("V2", "V3"):
        models.add(
            f"Deepseek{version}ForCausalLM",
            f"octavo_plugins.models.deepseek_v3.model:Deepseek{version}",
            capabilities=ModelCapabilities(
                quantizations=("*",),
                lora=True,
                tensor_parallel=True,
                pipeline_parallel=True,
                reference=f"transformers:Deepseek{version}ForCausalLM",
                conformance=f"octavo_plugins.models.deepseek_v3.conformance:{version}_VARIANTS",
            ),
        )
