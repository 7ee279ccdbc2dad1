"""Weights in float8 (e4m3) with a scale for each tensor or block."""

from octavo_registry import LazyRegistry, Quantization, hookimpl

OCTAVO_API = "1"


@hookimpl
def register_quantizations(quantizations: LazyRegistry[Quantization]) -> None:
    """Add "fp8"."""
    package = "octavo_plugins.quantizations.fp8"
    quantizations.add(
        "fp8", f"{package}.quantization:Fp8", samples=f"{package}.conformance:samples"
    )
