"""Any architecture of Transformers that lets others do its attention, run by its own code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from octavo_registry import LazyRegistry, ModelCapabilities, hookimpl

if TYPE_CHECKING:
    from octavo_registry import Model

OCTAVO_API = "1"


@hookimpl
def register_models(models: LazyRegistry[Model]) -> None:
    """Add "transformers", a name for ``model_impl``."""
    models.add(
        "transformers",
        "octavo_plugins.models.transformers.model:TransformersModel",
        capabilities=ModelCapabilities(
            conformance="octavo_plugins.models.transformers.conformance:VARIANTS",
        ),
    )


@hookimpl(trylast=True)
def select_model(architecture: str, config: Mapping[str, Any]) -> str | None:
    """Take what Transformers or the model's own folder has a causal language model for."""
    from octavo_plugins.models.transformers.architectures import is_known  # Transformers is slow

    return "transformers" if is_known(architecture, config) else None
