"""Reads harmony: messages as ``<|start|>assistant<|channel|>final<|message|>Hi<|end|>``.

The channel ``analysis`` is reasoning, ``final`` and ``commentary`` are content; a message with a
recipient, ``to=functions.NAME``, is a call. A model's text begins behind ``<|start|>assistant``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from octavo.tools import Reader, Reading
from octavo.tools.json_calls import json_arguments
from octavo.tools.reader import Sink

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
CONSTRAIN, END, CALL, RETURN = "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"
MARKERS = (START, CHANNEL, CONSTRAIN, MESSAGE, END, CALL, RETURN)

_ENDS = (END, CALL, RETURN)
_BEGINS = (START, CHANNEL)
_CHANNELS = ("analysis", "commentary", "final")
_TYPE = re.compile(r"[\w.\-/]+")
_BUILT_IN = re.compile(r"(?:python|browser|container)(?:\.|\Z)")


@dataclass(frozen=True, slots=True)
class Header:
    """What a message's header says: its channel, and whom the message is to."""

    channel: str | None = None
    recipient: str | None = None

    @property
    def call(self) -> str | None:
        """The function that the message calls; None: it is no call of a tool of the request."""
        if self.recipient is None or (
            self.channel == "analysis" and _BUILT_IN.match(self.recipient)
        ):
            return None
        return self.recipient.removeprefix("functions.")


def parsed_header(parts: Sequence[tuple[str, str]]) -> Header | None:
    """Return what the tags of a header, each with the text behind it, say; None: it is none."""
    channel = recipient = None
    for tag, text in parts:
        words = text.split()
        for word in [word for word in words if word.startswith("to=")]:
            recipient = word.removeprefix("to=")
            words.remove(word)
        if tag == CHANNEL and words:
            channel = words.pop(0)
        num_types = 1 if tag == CONSTRAIN or recipient else 0
        if len(words) > num_types or not all(map(_TYPE.fullmatch, words)):
            return None
    if recipient in ("assistant", "", "functions.") or channel not in (None, *_CHANNELS):
        return None
    return Header(channel, recipient)


class _Lines:
    """Text of several messages, each on a line of its own."""

    def __init__(self, to: Sink) -> None:
        self._to = to
        self._has_text = False
        self._between = False

    def begin_message(self) -> None:
        self._between = self._has_text

    def __call__(self, text: str) -> None:
        if text:
            self._to("\n" if self._between else "")
            self._between, self._has_text = False, True
            self._to(text)


class Harmony:
    """Reads a text. With ``keep_calls`` calls stay in the content, for a tool parser behind."""

    def __init__(self, reader: Reader, *, keep_calls: bool = False) -> None:
        self._reader = reader
        self._keep_calls = keep_calls
        self._content = _Lines(reader.content)
        self._reasoning = _Lines(reader.reasoning)

    def read(self) -> Reading[None]:
        """Read to the end."""
        reader = self._reader
        reader.hold()
        header = yield from self._first_header()
        while True:
            if header is None:
                reader.give_back()
                tag = yield from self._outside()
            else:
                tag = yield from self._text(header)
            if tag not in _BEGINS:
                tag = yield from self._outside()
            if tag is None:
                return
            reader.hold(tag)
            if tag == START and (yield from self._has_no_header()):
                reader.drop()
                header = None
            else:
                header = yield from self._rest_of_header([], tag)

    def _has_no_header(self) -> Reading[bool]:
        """Tell whether text follows the role at once: a guide may have had the model write so."""
        if not (yield from self._reader.literal("assistant")):
            return False
        character = yield from self._reader.peek()
        return character != "<" and bool(character.strip())

    def _outside(self) -> Reading[str | None]:
        """Pass on what stands in no message; return the tag that begins one."""
        tag: str | None = END
        while tag in _ENDS:
            tag = yield from self._reader.text_until(*_BEGINS, *_ENDS, to=self._content)
        return tag

    def _first_header(self) -> Reading[Header | None]:
        """Read the header that the prompt began, if it goes on with `` to=functions.f``."""
        reader = self._reader
        yield from reader.spaces()
        if not (yield from reader.literal("to=")):
            return None
        recipient = yield from reader.take_while(r"[^\s<]")
        yield from reader.take_while(r"[\s\w]")
        if (yield from reader.peek(2)) != "<|":
            return None
        return (yield from self._rest_of_header([(START, f"to={recipient}")], START))

    def _rest_of_header(self, parts: list[tuple[str, str]], tag: str) -> Reading[Header | None]:
        """Read up to the message's text; None: there is none. What is read is held."""
        while tag != MESSAGE:
            text, next_tag = yield from self._reader.read_until(*MARKERS)
            parts.append((tag, text))
            if next_tag not in (CHANNEL, CONSTRAIN, MESSAGE):
                return None
            tag = next_tag
        return parsed_header(parts)

    def _text(self, header: Header) -> Reading[str | None]:
        """Pass on a message's text; return the tag behind it."""
        if header.call is not None:
            return (yield from self._call(header.call))
        self._reader.drop()
        to = self._reasoning if header.channel == "analysis" else self._content
        to.begin_message()
        return (yield from self._reader.text_until(*_BEGINS, *_ENDS, to=to))

    def _call(self, name: str) -> Reading[str | None]:
        reader = self._reader
        if self._keep_calls:
            reader.give_back()
            yield from reader.json_value(reader.content)
            tag = yield from reader.text_until(*_BEGINS, *_ENDS)
            reader.content(tag if tag in _ENDS else "")
            return tag
        yield from reader.spaces()
        tag = yield from reader.literal(*_BEGINS, *_ENDS)
        if tag or not (yield from reader.peek()):
            reader.begin_call(name)("{}")
            return tag
        complete = yield from json_arguments(reader, lambda: reader.begin_call(name))
        if complete is None:
            reader.give_back()
        elif complete:
            yield from reader.spaces()
        to = reader.arguments if complete is False else reader.content
        return (yield from reader.text_until(*_BEGINS, *_ENDS, to=to))
