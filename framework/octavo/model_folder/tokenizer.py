"""The tokenizer of a model, and the tokens with which it ends a text."""

from __future__ import annotations

from typing import Any

from octavo.config.engine import ModelConfig
from octavo.model_folder import ModelFolder
from octavo.model_folder.sources import find_model
from octavo_registry import PluginHost
from octavo_registry.tokenizer import Tokenizer


def load_tokenizer(config: ModelConfig, folder: ModelFolder, host: PluginHost) -> Tokenizer | None:
    """Load what the config names, or the model's own; None where none is wanted."""
    if config.skip_tokenizer_init:
        return None
    path = folder.path
    if config.tokenizer is not None or config.tokenizer_revision is not None:
        revision = config.tokenizer_revision or config.revision
        path = find_model(host, config.tokenizer or config.model, revision, weights=False)
    mode, trusted = config.tokenizer_mode, config.trust_remote_code
    return host.tokenizers.make(mode, path, trust_remote_code=trusted)


def underlying(tokenizer: Tokenizer) -> Any:
    """What users get: the other library's tokenizer that this one wraps, if it does."""
    return getattr(tokenizer, "hf", tokenizer)


def eos_token_ids(folder: ModelFolder, tokenizer: Tokenizer | None) -> tuple[int, ...]:
    """Ids that end a text; chat models often name theirs in the tokenizer's files alone."""
    eos = () if tokenizer is None else (tokenizer.eos_token_id,)
    return tuple(i for i in dict.fromkeys((*folder.eos_token_ids, *eos)) if i is not None)
