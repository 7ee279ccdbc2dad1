"""A model's folder: where it is found, its settings, its tensors' places and its tokenizer."""

from octavo.model_folder.folder import ModelFolder, open_model

__all__ = ["ModelFolder", "open_model"]
