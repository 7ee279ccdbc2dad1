"""The bytes of tokens, by the spelling that a vocabulary has for them."""

from __future__ import annotations

import re
from functools import cache
from typing import Final

_FALLBACK: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_level(spelling: str) -> bytes | None:
    """The bytes of a byte-level vocabulary's token; None: it is none."""
    table = _byte_of_character()
    found = [table.get(character) for character in spelling]
    return None if None in found else bytes(byte for byte in found if byte is not None)


def fallback_byte(spelling: str) -> bytes | None:
    """The one byte that a token such as "<0xE4>" of SentencePiece stands for; None: it is none."""
    match = _FALLBACK.fullmatch(spelling)
    return None if match is None else bytes.fromhex(match[1])


@cache
def _byte_of_character() -> dict[str, int]:
    """Byte-level vocabularies write bytes that are no visible character as those from 256 on."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in visible]
    table = {chr(byte): byte for byte in visible}
    return table | {chr(256 + place): byte for place, byte in enumerate(others)}
