"""The Llama architecture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, ModelCapabilities, hookimpl

if TYPE_CHECKING:
    from octavo_registry import Model

OCTAVO_API = "1"


@hookimpl
def register_models(models: LazyRegistry[Model]) -> None:
    """Add LlamaForCausalLM."""
    models.add(
        "LlamaForCausalLM",
        "octavo_plugins.models.llama.model:Llama",
        capabilities=ModelCapabilities(
            quantizations=("*",),
            lora=True,
            tensor_parallel=True,
            pipeline_parallel=True,
            reference="transformers:LlamaForCausalLM",
            conformance="octavo_plugins.models.llama.conformance:VARIANTS",
        ),
    )
