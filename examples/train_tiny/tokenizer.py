"""A byte-level BPE tokenizer of 2048 tokens that splits a rare word alike wherever it stands.

A model copies a word by copying its tokens, so "Zorvath" must be the same tokens at the beginning
of a line, after a space and inside quotes. Hence: spaces are no part of what the merges are learnt
on, digits stand alone, and only whole frequent words get a token with a space before them.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from examples.train_tiny.chat import CALL, CHAT_TEMPLATE, END, END_OF_CALL, END_OF_TEXT, START
from examples.train_tiny.corpus import Corpus
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    processors,
    trainers,
)

VOCAB_SIZE = 2048
MAX_LENGTH = 1024
NUM_DOCUMENTS = 20_000
NUM_SPACED_WORDS = 450
SPACE = "\u0120"  # how byte-level BPE spells " "
SPECIAL = (END_OF_TEXT, START, END)
ADDED = (*SPECIAL, CALL, END_OF_CALL)
# A word is at most one capital and then small letters, or capitals alone: getWeather is two words.
WORD = r"\p{Lu}?\p{Ll}+|\p{Lu}+|\p{N}|[^\s\p{L}\p{N}]+|\p{L}"


def split(pattern: str) -> pre_tokenizers.PreTokenizer:
    cut = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence(
        [cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Learn the merges on words without spaces, then add spaces before the most frequent ones."""
    texts = list(texts)
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = split(rf"{WORD}|\s")
    learner.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=VOCAB_SIZE - NUM_SPACED_WORDS,
            show_progress=False,
            special_tokens=list(ADDED),
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        ),
    )
    model = json.loads(learner.to_str())["model"]
    vocab: dict[str, int] = model["vocab"]
    merges = [tuple(merge) for merge in model["merges"]]
    words = Counter(
        word for text in texts for word in re.findall(r"(?<= )[A-Za-z]+|(?<= )\W", text)
    )
    frequent = (word for word, _ in words.most_common() if word in vocab)
    for word in islice(frequent, VOCAB_SIZE - len(vocab)):
        vocab[SPACE + word] = len(vocab)
        merges.append((SPACE, word))  # the last merges, so that nothing inside a word comes first
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = split(rf" ?(?:{WORD})|\s")
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    tokenizer.add_tokens([AddedToken(text, special=False) for text in (CALL, END_OF_CALL)])
    # Plain text begins as it did in training; a chat says itself how it begins.
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{END_OF_TEXT} $A",
        special_tokens=[(END_OF_TEXT, tokenizer.token_to_id(END_OF_TEXT))],
    )
    return tokenizer


def sample_texts(seed: int) -> Iterator[str]:
    """Documents without the tokens that stand for themselves."""
    marks = re.compile("|".join(map(re.escape, ADDED)))
    for document in islice(Corpus(seed).documents(-1), NUM_DOCUMENTS):
        yield marks.sub(" ", "".join(piece.text for piece in document))


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write the files that transformers reads."""
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END_OF_TEXT,
        "eos_token": END,
        "pad_token": END_OF_TEXT,
        "chat_template": CHAT_TEMPLATE,
        "model_max_length": MAX_LENGTH,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.train_tiny.tokenizer")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    save_tokenizer(train_tokenizer(sample_texts(arguments.seed)), arguments.folder)


if __name__ == "__main__":
    main()
