"""From a model's name to its tensors: sources, safetensors files, dummy weights, loading.

``octavo.weights.load``, ``dummy`` and ``staging`` need torch; what stands here does not.
"""

from octavo.model_folder.header import TensorEntry, read_header
from octavo.model_folder.sources import find_model
from octavo.weights.checkpoint import Checkpoint, open_checkpoint

__all__ = ["Checkpoint", "TensorEntry", "find_model", "open_checkpoint", "read_header"]
