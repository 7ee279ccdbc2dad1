"""What crosses between a client and an engine for texts that become vectors.

Texts go by columns: an array has an entry for each text, so that a call of thousands costs no
Python for each. Arrays are bytes of int32 or float32 in the machine's own order.
"""

from __future__ import annotations

import msgspec


class PooledCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """Texts of a call that asks for a vector of each, or a slice of them, in token ids."""

    call: int
    """Unique among the client's live calls and sequences."""
    num_texts: int
    """Texts of the whole call."""
    first: int = 0
    """The number of the slice's first text."""
    token_ids: bytes
    """Tokens of all its texts, one behind the other."""
    lengths: bytes
    seconds: bytes = b""
    """Where each text's second part begins, whose tokens have type 1; empty: none has one."""
    skips: bytes = b""
    """Tokens at each text's beginning that count for nothing but as context; empty: none."""
    width: int = 0
    """Entries of a vector that are asked for, the first ones; 0: all."""
    unit_length: bool = False
    """Whether vectors are scaled to a length of 1."""


class PooledError(msgspec.Struct, frozen=True, array_like=True):
    """A text that has no vector."""

    number: int
    error: str
    error_type: str
    """The class in ``octavo.errors`` that a caller should see."""


class PooledRows(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Vectors of some texts of a call; each text is in one of these, or in ``errors``, once."""

    call: int
    numbers: bytes = b""
    rows: bytes = b""
    """One behind the other, in the order of ``numbers``."""
    errors: list[PooledError] = []
    is_last: bool = False
    """Whether all of the call's texts have been told now."""
