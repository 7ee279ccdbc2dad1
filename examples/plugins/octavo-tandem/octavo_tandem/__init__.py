"""The Tandem architecture."""

from octavo_registry import LazyRegistry, Model, ModelCapabilities, hookimpl

OCTAVO_API = "1"


@hookimpl
def register_models(models: LazyRegistry[Model]) -> None:
    """Add the architecture; the targets are imported by who needs them."""
    models.add(
        "TandemForCausalLM",
        "octavo_tandem.model:Tandem",
        capabilities=ModelCapabilities(
            reference="octavo_tandem.reference:reference",
            conformance="octavo_tandem.conformance:VARIANTS",
        ),
    )
