"""The GPT-2 architecture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, ModelCapabilities, hookimpl

if TYPE_CHECKING:
    from octavo_registry import Model

OCTAVO_API = "1"


@hookimpl
def register_models(models: LazyRegistry[Model]) -> None:
    """Add GPT2LMHeadModel."""
    models.add(
        "GPT2LMHeadModel",
        "octavo_plugins.models.gpt2.model:GPT2",
        capabilities=ModelCapabilities(
            quantizations=("*",),
            lora=True,
            tensor_parallel=True,
            pipeline_parallel=True,
            reference="transformers:GPT2LMHeadModel",
            conformance="octavo_plugins.models.gpt2.conformance:VARIANTS",
        ),
    )
