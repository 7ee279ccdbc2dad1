"""A small byte-level BPE tokenizer with a chat template, trained in milliseconds."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

PAD, BOS, EOS = "<|pad|>", "<|im_start|>", "<|im_end|>"
PAD_ID, BOS_ID, EOS_ID = range(3)
MIN_VOCAB_SIZE = 3 + 256  # the special tokens and every byte

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

TEXT = """\
A book begins as a pile of large sheets. The printer lays out the pages so that, once the sheet
is folded, each page follows the one before it. A sheet folded once gives two leaves and is called
a folio; folded twice it gives four leaves and is called a quarto; folded three times it gives eight
leaves, and that is an octavo. The folded sheets are gathered in order, sewn along the back,
pressed, and cut at the edges, and then the binder puts them between boards.
What is the capital of France? The capital of France is Paris. What is the capital of Italy? The
capital of Italy is Rome. How many leaves has a quarto? It has four. Where does the river rise? It
rises in the hills to the north, and it runs through the old town to the sea.
"Good morning," said the keeper of the library. "Which book are you looking for?" I told her that I
wanted to read about ships, and she showed me to a room with a window on the harbour. There were
more than nine hundred volumes on the shelves, from small guides for sailors to heavy atlases that
no one person could lift. I read until the light was gone, and when I came home I wrote down what I
had learned: the wind changes with the season, a captain trusts his charts, and nobody crosses the
ocean alone.
def count(words): return {word: words.count(word) for word in set(words)}
{"name": "count", "arguments": {"words": ["one", "two", "three"], "limit": 10}}
"""


def make_tiny_tokenizer(folder: Path, *, vocab_size: int, max_length: int) -> None:
    """Write tokenizer.json and tokenizer_config.json; any text survives encoding and decoding.

    The built-in text yields a few hundred merges, so a large ``vocab_size`` is not reached.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        show_progress=False,
        special_tokens=[PAD, BOS, EOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(TEXT.splitlines(keepends=True), trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": PAD,
        "bos_token": BOS,
        "eos_token": EOS,
        "chat_template": CHAT_TEMPLATE,
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
