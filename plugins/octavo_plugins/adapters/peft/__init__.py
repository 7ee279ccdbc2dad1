"""LoRA adapters as PEFT saves them: adapter_config.json and adapter_model.safetensors."""

from octavo_registry import AdapterFormat, AdapterResolver, LazyRegistry, hookimpl

OCTAVO_API = "1"


@hookimpl
def register_adapters(adapters: LazyRegistry[AdapterFormat | AdapterResolver]) -> None:
    """Add the format "peft"."""
    adapters.add(
        "peft",
        "octavo_plugins.adapters.peft.format:PeftFormat",
        samples="octavo_plugins.adapters.peft.conformance:samples",
    )
