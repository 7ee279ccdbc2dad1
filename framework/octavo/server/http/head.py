"""The first lines of a request or an answer, as bytes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

Headers = Sequence[tuple[bytes, bytes]]

_HOST: Final = re.compile(
    rb"(?:\[([0-9A-Za-z:.%_~-]*)\]|([^\x00-\x20\x7f-\xff/?#@\[\]\\:,]*))(?::[0-9]*)?"
)
"""What a Host header may be, which may be empty; an address of version 6 stands in brackets."""
_TARGET: Final = re.compile(rb"\S+ +(\S+)")
"""Finds the path in a request's first line."""


def fault_of(version: str, headers: Headers) -> str | None:
    """Why nobody can tell whom the request is for, or how to answer it; None: one can."""
    if version not in ("1.0", "1.1"):
        return f"this server speaks HTTP/1.1, not HTTP/{version}"
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) > 1 or (not hosts and version == "1.1"):
        return f"the request has {len(hosts)} Host headers; it needs one"
    if hosts and host_of(hosts[0]) is None:
        return "the Host header is no host"
    return None


def host_of(value: bytes) -> str | None:
    """The name or address before a port, if there is one; None for what is none."""
    found = _HOST.fullmatch(value)
    return None if found is None else (found[1] or found[2] or b"").decode()


def target_of(data: bytes | memoryview) -> bytes:
    """The path of a request that was refused before the parser came to it."""
    found = _TARGET.match(data)
    return found[1] if found else b""


def head(first: bytes, headers: Headers) -> bytes:
    """A first line and headers, to the end of the blank line."""
    return b"".join((first, *(b"\r\n%b: %b" % header for header in headers), b"\r\n\r\n"))
