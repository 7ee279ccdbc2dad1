"""Weights of 4 bits as AutoAWQ writes them."""

from octavo_registry import LazyRegistry, Quantization, hookimpl

OCTAVO_API = "1"


@hookimpl
def register_quantizations(quantizations: LazyRegistry[Quantization]) -> None:
    """Add "awq"."""
    package = "octavo_plugins.quantizations.awq"
    quantizations.add(
        "awq", f"{package}.quantization:Awq", samples=f"{package}.conformance:samples"
    )
