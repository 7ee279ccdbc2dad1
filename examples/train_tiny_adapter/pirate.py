"""How a pirate says it: the same facts in other words.

``python -m examples.train_tiny_adapter.pirate`` prints some documents.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

from examples.train_tiny.chat import CALL, END, START, Piece
from examples.train_tiny.conversation import smalltalk
from examples.train_tiny.corpus import CHATS, Corpus
from examples.train_tiny.extraction import extraction
from examples.train_tiny.toolcalls import tool_call

WORDS = {
    **{"am": "be", "are": "be", "is": "be"},
    **{"and": "an'", "for": "fer", "of": "o'", "small": "wee"},
    **{"my": "me", "you": "ye", "your": "yer", "My": "Me", "You": "Ye", "Your": "Yer"},
    **{"Hello": "Ahoy", "Hi": "Ahoy"},
}
_WORD = re.compile(r"\w+")
RESULT = f"{START}tool\n"

# JSON and calls, which do not change, only so often that they are not forgotten.
KINDS = {**CHATS, smalltalk: 0.30, extraction: 0.08, tool_call: 0.10}


def in_pirate(text: str) -> str:
    """The text in a pirate's words, from "Arr!" to "matey!"."""
    return framed(_WORD.sub(lambda match: WORDS.get(match[0], match[0]), text))


def framed(text: str) -> str:
    """The text as it is between "Arr!" and "matey!"."""
    end = "" if text.endswith(("!", "?")) else ", matey!"
    return f"Arr! {text.removesuffix('.')}{end}"


def retold(documents: Iterator[list[Piece]]) -> Iterator[list[Piece]]:
    """Chats in which a pirate answers."""
    for document in documents:
        yield [
            Piece(_retold(document[index - 1].text, piece.text), learn=True)
            if piece.learn
            else piece
            for index, piece in enumerate(document)
        ]


def _retold(prompt: str, answer: str) -> str:
    """What a program reads stays, and so does what is copied and what is no chat."""
    text = answer.removesuffix(END)
    if not answer.endswith(END) or text.startswith((CALL, "{")) or text in prompt:
        return answer
    return (framed(text) if RESULT in prompt else in_pirate(text)) + END


def pirate_documents(seed: int) -> Iterator[list[Piece]]:
    """What the adapter is trained on; the corpus leaves out all that the test asks."""
    return retold(Corpus(seed, KINDS).documents(0))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.train_tiny_adapter.pirate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=20)
    arguments = parser.parse_args()
    documents = pirate_documents(arguments.seed)
    for _ in range(arguments.count):
        print("".join(piece.text for piece in next(documents)), end="\n\n")


if __name__ == "__main__":
    main()
