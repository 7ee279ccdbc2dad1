"""Calls that are written as JSON objects, ``{"name": ..., "arguments": {...}}``."""

from __future__ import annotations

import re
from collections.abc import Callable

from octavo.tools.reader import Reader, Reading, Sink, ignore

NAME = "name"
ARGUMENTS = ("arguments", "parameters")
_KEY = re.compile(r'\s*+"([^"\\]*+)"\s*+:\s*+(?=\S)')
"""A key as it stands as a rule, and the white space around it."""
_GOES_ON = re.compile(r'[\w.+\-"]')
_FURTHER = re.compile(r'(?:"[^"\\]*+"|[\w.+\-]++)(?=[\s,}])')
"""A value of no interest, of the short kinds."""


def json_call(
    reader: Reader,
    *,
    needs_arguments: bool = False,
    opened: bool = False,
    name_key: str = NAME,
) -> Reading[bool]:
    """Read one call and pass it on as it comes; return whether it was one.

    Members may stand in any order, further ones are left out. What is read belongs to the text
    that the reader holds until name and arguments are certain; if there is no call, the caller
    gives that back. A name alone is a call without arguments, unless they are needed to tell.
    ``opened`` says that the object's brace has been read, ``name_key`` what holds the name.
    """
    call = _Call(reader, name_key)
    if not (opened or (yield from reader.literal("{"))):
        return False
    yield from reader.spaces()
    if (yield from reader.peek()) != '"':
        return False
    while (yield from _member(reader, call)):
        yield from reader.spaces()
        if call.begun and (yield from reader.peek()) in (",", "}"):
            reader.drop()  # it was a further member
        if not (yield from reader.literal(",")):
            break
        if call.begun:
            reader.hold()
    if call.begun:
        reader.give_back()
    if (yield from reader.literal("}")) and not (needs_arguments or call.has_more):
        call.without_arguments()
    return call.begun


def json_calls(
    reader: Reader, *, needs_arguments: bool = False, name_key: str = NAME
) -> Reading[bool]:
    """Read one call, or an array of them; return whether a call was found.

    The array's brackets and commas are left out. It ends at the first element that is no call.
    """
    if not (yield from reader.literal("[")):
        return (yield from json_call(reader, needs_arguments=needs_arguments, name_key=name_key))
    found = False
    while True:
        yield from reader.spaces()
        reader.hold()
        call = json_call(reader, needs_arguments=needs_arguments, name_key=name_key)
        if not (yield from call):
            break
        found = True
        yield from reader.spaces()
        if not (yield from reader.literal(",")):
            break
    if found:
        reader.give_back()
    yield from reader.literal("]")
    return found


def tagged_calls(
    reader: Reader, *, opens: tuple[str, ...], closes: tuple[str, ...] = ()
) -> Reading[None]:
    """Read a message in which a tag stands before each call, or before an array of them.

    What follows the tag and is no call is content, the tag too. So is what stands between a call
    and its closing tag, which may be missing.
    """
    closing: tuple[str, ...] = ()
    while tag := (yield from reader.text_until(*opens, *closing)):
        closing = ()
        if tag in opens:
            reader.hold(tag)
            yield from reader.spaces()
            if not (yield from json_calls(reader)):
                reader.give_back()
            elif not (yield from reader.skip(*closes)):
                closing = closes


class _Call:
    """Name and arguments, which come in any order, until both have begun."""

    def __init__(self, reader: Reader, name_key: str) -> None:
        self._reader = reader
        self.name_key = name_key
        self.begun = False
        self.name: str | None = None
        self.early: list[str] | None = None
        """Arguments that came before the name."""
        self.has_more = False
        """Whether there are members that are neither the name nor an object of arguments."""

    def named(self, name: str) -> None:
        self.name = name
        if self.early is not None:
            self._begin(name)("".join(self.early))

    def arguments(self) -> Sink:
        """Return what takes the arguments that begin now."""
        if self.name is not None:
            return self._begin(self.name)
        self.early = []
        return self.early.append

    def without_arguments(self) -> None:
        if not self.begun and self.name is not None:
            self._begin(self.name)("{}")

    def _begin(self, name: str) -> Sink:
        self.begun = True
        return self._reader.begin_call(name)


def _member(reader: Reader, call: _Call) -> Reading[bool]:
    """Read one ``"key": value``; return whether it was one, and complete."""
    if at_once := reader.take_at_once(_KEY):
        key: str | None = at_once[1]
    else:
        yield from reader.spaces()
        key = yield from reader.json_string()
        yield from reader.spaces()
        if key is None or not (yield from reader.literal(":")):
            return False
        yield from reader.spaces()
    if key == call.name_key:
        name = None if call.name else (yield from reader.json_string())
        if name:
            call.named(name)
        return bool(name)
    if key in ARGUMENTS:
        repeated = call.begun or call.early is not None
        if repeated or (yield from reader.peek()) in ("", ",", "}"):
            return False
        complete = yield from json_arguments(reader, call.arguments)
        call.has_more = call.has_more or complete is None
        return bool(complete)
    call.has_more = True
    if reader.take_at_once(_FURTHER):
        return True
    return (yield from reader.json_value(to=ignore))


def json_arguments(reader: Reader, begin: Callable[[], Sink]) -> Reading[bool | None]:
    """Read the arguments of a call: an object as it is written, or the object that a string holds.

    What begins as an object, with a brace and then a key, its end or the end of the text, goes to
    what ``begin`` returns; for null and "" that gets an empty one. Return whether the arguments
    were complete; None: they are none, ``begin`` was not called, and what was read is held.
    """
    if (yield from reader.literal("null", '""')):
        if _GOES_ON.match((yield from reader.peek())):
            return None
        begin()("{}")
        return True
    if (yield from reader.literal("{")):
        spaces = yield from reader.take_while(r"\s")
        if (yield from reader.peek()) not in ('"', "}", ""):
            return None
        to = begin()
        to("{" + spaces)
        return (yield from reader.json_value(to, depth=1))
    if (yield from reader.peek()) != '"':
        return None
    text = _ObjectText(begin)
    return text.end((yield from reader.json_string_text(text)))


class _ObjectText:
    """Passes on the text that a string holds, from where it is sure to begin as an object."""

    def __init__(self, begin: Callable[[], Sink]) -> None:
        self._begin = begin
        self._to: Sink | None = None
        self._parts: list[str] = []
        self._marks = ""
        """The first two characters that are no white space."""

    def __call__(self, text: str) -> None:
        if self._to is not None:
            self._to(text)
            return
        self._parts.append(text)
        self._marks = (self._marks + "".join(text.split()))[:2]
        if self._marks in ('{"', "{}"):
            self._pass_on()
        elif len(self._marks) == 2:
            self._to = ignore

    def end(self, complete: bool) -> bool | None:
        """Return ``complete``, False at the end of the text; None: the string holds no object."""
        if self._marks == "{" and not complete:
            self._pass_on()
        return None if self._to in (None, ignore) else complete

    def _pass_on(self) -> None:
        self._to = self._begin()
        self._to("".join(self._parts))
