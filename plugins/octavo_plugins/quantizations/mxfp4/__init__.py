"""Experts in MXFP4, as gpt-oss is published."""

from octavo_registry import LazyRegistry, Quantization, hookimpl

OCTAVO_API = "1"


@hookimpl
def register_quantizations(quantizations: LazyRegistry[Quantization]) -> None:
    """Add "mxfp4"."""
    package = "octavo_plugins.quantizations.mxfp4"
    quantizations.add(
        "mxfp4", f"{package}.quantization:Mxfp4", samples=f"{package}.conformance:samples"
    )
