"""AutoTokenizer behind the Tokenizer Protocol."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from octavo.errors import ModelError
from octavo.inputs.marked import encode_in_pieces
from octavo_plugins.tokenizers.transformers.marked import MarkedEncoder
from octavo_registry.faults import one_line

_MAX_MARKED: Final = 8
"""Sets of control tokens, of which a chat template has one."""
_FOLDED: Final = ("\uff21", "\u212a", "A", "\u00e9", "x\u200bx")
"""Letters that normalizers make other letters of, or leave out."""
_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt")


class TransformersTokenizer:
    """A tokenizer of a local folder; nothing is fetched over the network."""

    def __init__(self, folder: str | Path, *, trust_remote_code: bool = False) -> None:
        hf: Any = _load(Path(folder), trust_remote_code)
        self.hf = hf
        # Streams decode per token: the Rust object takes 1.5 us for 8 ids, the wrapper 3 us.
        self._fast = hf.backend_tokenizer if hf.is_fast else None
        added: Mapping[int, Any] = hf.added_tokens_decoder
        # Vocabularies may have holes, so that the count of tokens is not always the highest id + 1.
        self.vocab_size = max(len(hf), 1 + max(added, default=-1))
        self.bos_token_id: int | None = hf.bos_token_id
        self.eos_token_id: int | None = hf.eos_token_id
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        if self._fast is None:
            self.special_ids |= frozenset(hf.all_special_ids)
        self.byte_fallback_ids = _byte_fallback_ids(hf)
        self.added_tokens = {
            token.content: token.special or number in self.special_ids
            for number, token in added.items()
        }
        self.normalized = _folding(hf) if self._fast is not None else None
        self._marked_encoder = lru_cache(_MAX_MARKED)(
            lambda controls: MarkedEncoder(hf.backend_tokenizer, controls)
        )
        self.special_tokens: Mapping[str, Any] = hf.special_tokens_map
        self.chat_template: str | Mapping[str, str] | None = hf.chat_template

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of the text; never truncated, whatever the tokenizer's own files say."""
        ids: list[int] = self.hf.encode(
            text, add_special_tokens=add_special_tokens, truncation=False, verbose=False
        )
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text; a fast tokenizer encodes them on all cores."""
        ids: list[list[int]] = self.hf(
            list(texts),
            truncation=False,
            padding=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )["input_ids"]
        return ids

    def encode_marked(
        self, text: str, marked: Sequence[tuple[int, int]], controls: frozenset[str]
    ) -> list[int]:
        """Ids of the text, in which those of ``controls`` are tokens at ``marked`` places only."""
        ids = None
        if self._fast is not None:
            ids = self._marked_encoder(controls).encode(text, marked)
        return encode_in_pieces(self, text, marked, controls) if ids is None else ids

    def decode(
        self,
        ids: Sequence[int],
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> str:
        """Text of the ids; ``spaces_between_special_tokens`` is for tokenizers that add any."""
        if self._fast is not None:
            fast: str = self._fast.decode(ids, skip_special_tokens=skip_special_tokens)
            return fast
        text: str = self.hf.decode(
            [i for i in ids if i < self.vocab_size],
            skip_special_tokens=skip_special_tokens,
            spaces_between_special_tokens=spaces_between_special_tokens,
            clean_up_tokenization_spaces=False,
        )
        return text

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str | None]:
        """The vocabulary's spelling of each id; None for an id that it lacks."""
        tokens: list[str | None] = self.hf.convert_ids_to_tokens(list(ids))
        return tokens


def _load(folder: Path, trust_remote_code: bool) -> Any:
    if not any((folder / name).is_file() for name in _FILES):
        raise ModelError(
            f"{folder} holds no tokenizer (none of {', '.join(_FILES)}); "
            "give tokenizer=FOLDER, or skip_tokenizer_init=True and prompts as token ids"
        )
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            folder,
            config=_config(folder),
            local_files_only=True,
            trust_remote_code=trust_remote_code,
        )
        tokenizer.encode("a")  # some of its settings are not looked at before
    except Exception as error:  # it raises whatever its parsers raise
        raise ModelError(
            f"the tokenizer in {folder} cannot be loaded: {one_line(error)}"
        ) from error
    return tokenizer


def _config(folder: Path) -> Any:
    """All of a model's config that AutoTokenizer looks at where the tokenizer names its own class.

    Without one it imports the model's class of config, and that torch's compiler: 1.3 of 2.1 s.
    None where that class has to decide.
    """
    own, model = (_entries(folder / name) for name in ("tokenizer_config.json", "config.json"))
    if "tokenizer_class" not in own or "auto_map" in own:
        return None
    from transformers import PreTrainedConfig

    config = PreTrainedConfig()
    config.model_type = model.get("model_type", "")
    return config


def _entries(file: Path) -> Mapping[str, Any]:
    if not file.is_file():
        return {}
    entries: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return entries


def _folding(hf: Any) -> Callable[[str], str] | None:
    """The normalizer, if it makes other letters and tokens are looked for behind it."""
    normalizer = hf.backend_tokenizer.normalizer
    tokens = hf.added_tokens_decoder.values()
    if normalizer is None or not any(token.normalized for token in tokens):
        return None
    normalized: Callable[[str], str] = normalizer.normalize_str
    folds = any(normalized(text).strip(" \u2581") != text for text in _FOLDED)
    return normalized if folds else None


def _byte_fallback_ids(hf: Any) -> frozenset[int]:
    tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    ids = hf.convert_tokens_to_ids(tokens)
    pairs = zip(tokens, ids, strict=True)
    # A vocabulary without them answers with the unknown token's id.
    return frozenset(
        i for token, i in pairs if i is not None and hf.convert_ids_to_tokens(i) == token
    )
