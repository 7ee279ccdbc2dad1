"""Ids of a text in which control tokens stand at known places only, by any tokenizer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from octavo.errors import PromptError
from octavo.inputs.controls import ChatText, any_of, read_vocabulary
from octavo_registry.tokenizer import ControlTokens, Tokenizer

_UNKNOWN: Final = "\U0010fffe"
"""A character that vocabularies lack."""


def encode_marked(tokenizer: Tokenizer, *, chat: ChatText) -> list[int]:
    """Ids of a chat of which is known where control tokens stand."""
    marked = chat.marked or ()
    if isinstance(tokenizer, ControlTokens):
        return tokenizer.encode_marked(chat.text, marked, chat.controls)
    return encode_in_pieces(tokenizer, chat.text, marked, chat.controls)


def encode_plain(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids of a stranger's text, of which none is a special token."""
    special = read_vocabulary(tokenizer).special
    if any_of(special).search(text) is None:
        return tokenizer.encode(text, add_special_tokens=False)
    return encode_marked(
        tokenizer, chat=ChatText(text=text, shown=text, marked=(), controls=special)
    )


def encode_in_pieces(
    tokenizer: Tokenizer,
    text: str,
    marked: Sequence[tuple[int, int]],
    controls: frozenset[str],
) -> list[int]:
    """Each piece is a text of its own: some vocabularies write a space before each.

    What reads as a control token and is none is cut behind its first character.
    """
    known = any_of(controls)
    unknown = tokenizer.encode(_UNKNOWN, add_special_tokens=False)
    never = controls.difference(tokenizer.convert_ids_to_tokens(unknown))
    ids: list[int] = []
    end = 0
    for start, behind in (*marked, (len(text), len(text))):
        for piece in _cut(text[end:start], known):
            found = tokenizer.encode(piece, add_special_tokens=False)
            spelled = tokenizer.convert_ids_to_tokens(found)
            if not never.isdisjoint(spelled):
                raise PromptError(
                    f"the tokenizer knows {piece!r} as a control token only; leave it out, or let "
                    "the operator set trust_message_tokens"
                )
            ids += found
        if start < behind:
            ids += tokenizer.encode(text[start:behind], add_special_tokens=False)
        end = behind
    return ids


def _cut(text: str, known: re.Pattern[str]) -> Iterator[str]:
    begin = 0
    while found := known.search(text, begin):
        yield text[begin : found.start() + 1]
        begin = found.start() + 1
    if text[begin:]:
        yield text[begin:]
