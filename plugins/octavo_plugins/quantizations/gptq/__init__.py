"""Weights of 4 or 8 bits as GPTQModel and AutoGPTQ write them."""

from octavo_registry import LazyRegistry, Quantization, hookimpl

OCTAVO_API = "1"


@hookimpl
def register_quantizations(quantizations: LazyRegistry[Quantization]) -> None:
    """Add "gptq"."""
    package = "octavo_plugins.quantizations.gptq"
    quantizations.add(
        "gptq", f"{package}.quantization:Gptq", samples=f"{package}.conformance:samples"
    )
