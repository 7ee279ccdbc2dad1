"""Calls that stand between tags: one behind the other, with tags around each and around all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from octavo.tools import Reader, Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTags:
    """The tags around calls."""

    call: str
    """With it a call begins."""
    opening: tuple[str, ...] = ()
    """What may stand before that."""
    closing: tuple[str, ...] = ()
    """What may stand behind a call's end."""
    between: str = r"\s"
    """The characters that may stand between an opening tag and the next."""

    @property
    def begins(self) -> tuple[str, ...]:
        """The tags that a text with calls has."""
        return (self.call, *self.opening)


def tagged_calls(
    reader: Reader, tags: CallTags, read_call: Callable[[], Reading[str | None]]
) -> Reading[None]:
    """Read a message: calls, and content around them.

    ``read_call`` reads on behind the tag ``call``, which is held, and returns the tag that it met
    at the call's end; None: there is no call, which then is content, or no tag.
    """
    while (tag := (yield from reader.text_until(*tags.begins))) is not None:
        reader.hold(tag)
        while tag is not None:
            if tag == tags.call:
                tag = yield from read_call()
                reader.hold(tag if tag in tags.begins else "")
            elif tag in tags.opening:
                yield from reader.take_while(tags.between)
                tag = yield from reader.literal(*tags.begins)
            else:
                reader.drop()
                reader.hold()
                yield from reader.spaces()
                tag = yield from reader.literal(*tags.closing, *tags.begins)
        reader.give_back()
