"""Small tokenizers of the three families that models use, trained when asked for."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from octavo_plugins.tokenizers.transformers.tokenizer import TransformersTokenizer

TEXTS = [
    "the quick brown fox jumps over the lazy dog, and the dog's day is over. ",
    "日本語の文章と emoji 😀👩‍👩‍👧 café naïve übermäßig \ufffd kept as it is\n",
    "def quick(fox): return {'lazy': fox}\n\n    indented   text\t",
] * 4
SPECIAL = ["<s>", "</s>", "<pad>"]
KINDS = ["byte_level", "sentencepiece", "wordpiece"]


def save(
    kind: str,
    folder: Path,
    *,
    chat_template: str | dict[str, str] | None = None,
    added: Sequence[AddedToken] = (),
) -> None:
    """Write the tokenizer's files; ids 0, 1 and 2 are <s>, </s> and <pad>."""
    backend = {
        "byte_level": _byte_level,
        "sentencepiece": _sentencepiece,
        "wordpiece": _wordpiece,
        "metaspace": _metaspace,
        "unigram": _unigram,
    }[kind]()
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    wrapped.add_tokens(["<tool_call>", *added])  # added, yet not special
    if chat_template is not None:
        wrapped.chat_template = chat_template
    wrapped.save_pretrained(folder)


@cache
def load(kind: str) -> TransformersTokenizer:
    """One instance for all tests of a run; its folder does not outlive the call."""
    with tempfile.TemporaryDirectory() as folder:
        save(kind, Path(folder))
        return open_folder(Path(folder))


def open_folder(folder: Path) -> TransformersTokenizer:
    """Load what ``save`` wrote."""
    return TransformersTokenizer(folder)


def _byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        show_progress=False,
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def _sentencepiece() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        show_progress=False,
        special_tokens=[*SPECIAL, "<unk>"],
        limit_alphabet=40,  # so that rare characters fall back to bytes
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    # Bytes are part of the vocabulary, not added tokens, as in the models that have them.
    state = json.loads(tokenizer.to_str())
    vocab = state["model"]["vocab"]
    for byte in range(256):
        vocab[f"<0x{byte:02X}>"] = len(vocab)
    return Tokenizer.from_str(json.dumps(state))


def _metaspace() -> Tokenizer:
    """As newer files of Llama's: a space before the first piece of a text only."""
    tokenizer = _sentencepiece()
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return tokenizer


def _unigram() -> Tokenizer:
    """Has its special tokens among its pieces too, as the best of them."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=300, show_progress=False, special_tokens=[*SPECIAL, "<unk>"], unk_token="<unk>"
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def _wordpiece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    trainer = trainers.WordPieceTrainer(
        vocab_size=300, show_progress=False, special_tokens=[*SPECIAL, "[UNK]"]
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer
