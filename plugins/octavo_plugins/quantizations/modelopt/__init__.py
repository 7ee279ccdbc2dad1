"""Weights in float8 as TensorRT Model Optimizer writes them."""

from octavo_registry import LazyRegistry, Quantization, hookimpl

OCTAVO_API = "1"


@hookimpl
def register_quantizations(quantizations: LazyRegistry[Quantization]) -> None:
    """Add "modelopt"."""
    package = "octavo_plugins.quantizations.modelopt"
    quantizations.add(
        "modelopt", f"{package}.quantization:ModelOpt", samples=f"{package}.conformance:samples"
    )
