"""A byte-level BPE tokenizer as large models have, made from text that every machine has."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path

MOST_TEXT = 40_000_000
END = "</s>"


def write_bpe_tokenizer(folder: Path, *, vocab_size: int, text: Path | None = None) -> None:
    """Train on the sources of Python's library and of what is installed; pad with words unused.

    ``text`` is a folder to take the sources from instead. The text decides how many merges there
    are; real vocabularies of 128,000 entries are wider, not otherwise.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<unk>", "<s>", END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(text or Path(sysconfig.get_path("stdlib"))), trainer)
    missing = vocab_size - tokenizer.get_vocab_size()
    tokenizer.add_tokens([f" unused{number}" for number in range(missing)])
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token=END, unk_token="<unk>"
    ).save_pretrained(folder)


def _texts(folder: Path) -> Iterator[str]:
    left = MOST_TEXT
    for path in sorted(folder.rglob("*.py")):
        if left <= 0:
            break
        text = path.read_text(encoding="utf-8", errors="ignore")[:left]
        left -= len(text)
        yield text
