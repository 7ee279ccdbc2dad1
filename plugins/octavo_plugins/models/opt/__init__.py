"""The OPT architecture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, ModelCapabilities, hookimpl

if TYPE_CHECKING:
    from octavo_registry import Model

OCTAVO_API = "1"


@hookimpl
def register_models(models: LazyRegistry[Model]) -> None:
    """Add OPTForCausalLM."""
    models.add(
        "OPTForCausalLM",
        "octavo_plugins.models.opt.model:OPT",
        capabilities=ModelCapabilities(
            quantizations=("*",),
            lora=True,
            tensor_parallel=True,
            pipeline_parallel=True,
            reference="transformers:OPTForCausalLM",
            conformance="octavo_plugins.models.opt.conformance:VARIANTS",
        ),
    )
