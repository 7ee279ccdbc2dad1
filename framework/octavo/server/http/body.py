"""A request's body: bounded while it arrives, and JSON in which nothing is doubtful."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from octavo.config.server import LimitConfig
from octavo.errors import OctavoError
from octavo.server.http.errors import HttpError
from octavo.wording import shown

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

MAX_BYTES_ON_LOOP: Final = 65_536
"""JSON of this size takes less than a millisecond to read; longer bodies are read in a thread."""
# Possessive, and a string need not end: else text full of quotes would take quadratic time.
_PART: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{},]', re.DOTALL)
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
"""Where half of a surrogate pair may stand; decoded UTF-8 holds none."""


class ClientLeft(OctavoError):
    """The client closed its connection; nobody waits for an answer."""


async def read_json(
    headers: dict[bytes, bytes], receive: Receive, limits: LimitConfig
) -> dict[str, Any]:
    """Read a JSON object under the limits; raises HttpError 400, 408, 411, 413 or 415."""
    kind, *parameters = headers.get(b"content-type", b"").lower().split(b";")
    kind = kind.strip()
    if kind != b"application/json" and not kind.endswith(b"+json"):
        # Pages of other sites may send what says nothing without asking first.
        given = f"not {shown(kind.decode('latin-1'))}" if kind else "which the request does not say"
        raise HttpError(415, f"the content-type must be application/json, {given}")
    charsets = [each.partition(b"charset=")[2].strip(b' "') for each in parameters]
    if any(name not in (b"", b"utf-8", b"utf8", b"us-ascii") for name in charsets):
        raise HttpError(415, "the charset must be utf-8")
    data = await read_bytes(headers, receive, limits)
    if len(data) <= MAX_BYTES_ON_LOOP:
        return parse_object(data, limits)
    return await asyncio.to_thread(parse_object, data, limits)


async def read_bytes(headers: dict[bytes, bytes], receive: Receive, limits: LimitConfig) -> bytes:
    """Read a body of any kind; raises HttpError 400, 408, 411, 413 or 415."""
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise HttpError(415, "content-encoding must be identity")
    _check_framing(headers)
    return await _read(headers, receive, limits)


def parse_object(data: bytes, limits: LimitConfig) -> dict[str, Any]:
    """Parse a JSON object; NaN, infinities, repeated keys and what is above limits are errors."""
    _check_shape(data, limits.max_json_depth, limits.max_json_parts)
    doubtful = []

    def number(text: str) -> float:
        value = float(text)
        if not math.isfinite(value):
            doubtful.append(text)
        return value

    try:
        value = json.loads(
            data.decode(),
            object_pairs_hook=_without_repeats,
            parse_constant=number,
            parse_float=number,
        )
    except UnicodeDecodeError as error:
        raise HttpError(400, f"the body is not UTF-8: byte {error.start} is no text") from None
    except (ValueError, RecursionError) as error:
        raise HttpError(400, f"the body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise HttpError(400, f"the body must be a JSON object, not {shown(value)}")
    if doubtful or _SURROGATE.search(data):
        _find_doubtful(value)
    return value


def _check_framing(headers: dict[bytes, bytes]) -> None:
    """Raise for a body of which nothing says where it ends, and for one that is packed."""
    coding = headers.get(b"transfer-encoding", b"chunked").lower()
    if coding != b"chunked":
        raise HttpError(400, f"transfer-encoding {shown(coding.decode('latin-1'))} is not chunked")
    if b"content-length" not in headers and b"transfer-encoding" not in headers:
        raise HttpError(411, "the body needs a content-length, or transfer-encoding: chunked")


async def _read(headers: dict[bytes, bytes], receive: Receive, limits: LimitConfig) -> bytes:
    most = int(limits.max_body_mib * 2**20)
    announced = headers.get(b"content-length", b"")
    if announced.isdigit() and int(announced) > most:
        raise _too_long(limits)
    chunks = bytearray()
    try:
        async with asyncio.timeout(limits.body_timeout_seconds):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientLeft
                chunks += message.get("body", b"")
                if len(chunks) > most:
                    raise _too_long(limits)
                if not message.get("more_body"):
                    return bytes(chunks)
    except TimeoutError:
        seconds = limits.body_timeout_seconds
        raise HttpError(408, f"the body did not arrive within {seconds:g} s") from None


def _too_long(limits: LimitConfig) -> HttpError:
    return HttpError(413, f"the body is longer than {limits.max_body_mib:g} MiB")


def _check_shape(data: bytes, max_depth: int, max_parts: int) -> None:
    """Raise before the parser, which lets no other thread run, makes objects of too many parts."""
    num_opening = data.count(b"[") + data.count(b"{")
    num_parts = num_opening + data.count(b",") + (data.count(b'"') + 1) // 2
    if num_opening <= max_depth and num_parts <= max_parts:
        return  # however many of them are inside strings
    depth = num_parts = 0
    for part in _PART.finditer(data):
        match part[0]:
            case b"]" | b"}":
                depth -= 1
                continue
            case b"[" | b"{":
                depth += 1
                if depth > max_depth:
                    raise HttpError(400, f"the body is nested deeper than {max_depth} levels")
        num_parts += 1
        if num_parts > max_parts:
            raise HttpError(400, f"the body has more than {max_parts} strings, lists and commas")


def _find_doubtful(body: dict[str, Any]) -> None:
    """Raise for the field that holds what JSON, or UTF-8, cannot say."""
    for name, value in body.items():
        try:
            json.dumps({name: value}, ensure_ascii=False, allow_nan=False).encode()
        except UnicodeEncodeError:
            text = "holds half of a surrogate pair, which is no text"
        except ValueError:
            text = "holds a number that is not finite"
        else:
            continue
        raise HttpError(400, f"{shown(name)} {text}", param=name[:64])


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise HttpError(400, f"the key {shown(key)} is given twice", param=key[:64])
            seen.add(key)
    return made
