"""Token ids to text: incremental decoding, stop strings, and the outputs that callers get."""

from octavo.detokenizing.incremental import IncrementalDetokenizer
from octavo.detokenizing.processor import OutputProcessor, ProcessedStep
from octavo.detokenizing.stop_strings import StopStrings

__all__ = ["IncrementalDetokenizer", "OutputProcessor", "ProcessedStep", "StopStrings"]
