"""A plugin: the architecture whose answers are written down beforehand."""

from octavo_registry import LazyRegistry, Model, ModelCapabilities, hookimpl

OCTAVO_API = "1"


@hookimpl
def register_models(models: LazyRegistry[Model]) -> None:
    models.add(
        "ScriptedForCausalLM", "scripted_model.model:Scripted", capabilities=ModelCapabilities()
    )
