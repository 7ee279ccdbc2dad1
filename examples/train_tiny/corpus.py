"""The corpus: documents of all kinds, drawn without end, none of which gives the test away.

``python -m examples.train_tiny.corpus`` prints some.
"""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Callable, Iterator, Mapping

from examples.train_tiny.chat import END_OF_TEXT, Chat, Piece, render
from examples.train_tiny.conversation import (
    arithmetic,
    capital,
    counting,
    introduction,
    plain_text,
    repeat,
    smalltalk,
    unknown,
)
from examples.train_tiny.extraction import extraction
from examples.train_tiny.heldout import held_out_strings
from examples.train_tiny.templates import expand
from examples.train_tiny.toolcalls import (
    NO_TOOL,
    NO_TOOLS_AT_ALL,
    no_tool_fits,
    other_tools,
    tool_call,
)
from examples.train_tiny.words import Words, load

Kinds = Mapping[Callable[[Words], Chat], float]
CHATS: Kinds = {
    smalltalk: 0.20,
    capital: 0.07,
    introduction: 0.03,
    repeat: 0.05,
    arithmetic: 0.03,
    counting: 0.01,
    unknown: 0.04,
    extraction: 0.29,
    tool_call: 0.28,
    no_tool_fits: 0.035,
}
PLAIN_TEXT_SHARE = 0.05
WITHOUT_TOOLS = (smalltalk, capital, introduction, repeat, arithmetic)
_WORDS = re.compile(r"[a-z0-9_]+")


class Corpus:
    """Documents by number: the same seed and number give the same ones on any machine."""

    def __init__(self, seed: int = 0, chats: Kinds = CHATS) -> None:
        self._seed = seed
        self._chats = chats
        # None of these is in any document, so that what the test asks is never seen in training.
        strings = held_out_strings()
        self._held_out_words = {text for text in strings if _WORDS.fullmatch(text)}
        self._held_out_phrases = [text for text in strings if text not in self._held_out_words]

    def documents(self, number: int, *, copying: float = 0.0) -> Iterator[list[Piece]]:
        """An endless stream; ``copying`` is the share that is nothing but copying."""
        words = Words(random.Random(f"{self._seed}/{number}"))
        while True:
            is_copying = words.chance(copying)
            document = _copying(words) if is_copying else _document(words, self._chats)
            if not self._gives_away(document):
                yield document

    def _gives_away(self, document: list[Piece]) -> bool:
        text = "".join(piece.text for piece in document).lower()
        if not self._held_out_words.isdisjoint(_WORDS.findall(text)):
            return True
        return any(phrase in text for phrase in self._held_out_phrases)


def _copying(words: Words) -> list[Piece]:
    return render(repeat(words))


def _document(words: Words, chats: Kinds) -> list[Piece]:
    if words.chance(PLAIN_TEXT_SHARE):
        return [Piece(END_OF_TEXT, learn=False), Piece(plain_text(words) + END_OF_TEXT, learn=True)]
    count = words.rng.choice((1, 1, 1, 2, 3))
    kinds = words.rng.choices(list(chats), list(chats.values()), k=count)
    chat = kinds[0](words)
    if kinds[0] in WITHOUT_TOOLS and words.chance(0.2):  # tools that nobody asks for
        chat.tools = other_tools(words, words.rng.randint(1, 3))
    for kind in kinds[1:]:
        _go_on(chat, kind(words))
    if not chat.system and words.chance(0.2):
        chat.system = expand(load("facts")["system"][0], words.rng)
    return render(chat)


def _go_on(chat: Chat, more: Chat) -> None:
    """Put a second exchange behind the first, unless each would make the other wrong."""
    names = {tool.name for tool in chat.tools}
    clash = any(tool.name in names for tool in more.tools)
    # What no tool can do, the other exchange's tools might; and a system message rules them all.
    cannot = any(turn.content in (NO_TOOL, NO_TOOLS_AT_ALL) for turn in chat.turns + more.turns)
    if not (clash or cannot or chat.system or more.system):
        chat.tools = chat.tools + more.tools
        chat.turns = chat.turns + more.turns


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.train_tiny.corpus")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=20)
    arguments = parser.parse_args()
    documents = Corpus(arguments.seed).documents(0)
    for _ in range(arguments.count):
        print("".join(piece.text for piece in next(documents)), end="\n\n")


if __name__ == "__main__":
    main()
