"""Weights as llm-compressor writes them: float8, int8, 4 and 8 bits in words."""

from octavo_registry import LazyRegistry, Quantization, hookimpl

OCTAVO_API = "1"


@hookimpl
def register_quantizations(quantizations: LazyRegistry[Quantization]) -> None:
    """Add "compressed-tensors"."""
    package = "octavo_plugins.quantizations.compressed_tensors"
    target = f"{package}.quantization:CompressedTensors"
    quantizations.add("compressed-tensors", target, samples=f"{package}.conformance:samples")
