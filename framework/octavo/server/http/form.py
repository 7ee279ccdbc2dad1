"""A form as browsers send files, bounded, and nothing in it doubtful."""

from __future__ import annotations

import asyncio
import re
from typing import Any, Final

from octavo.config.server import LimitConfig
from octavo.server.http.body import Receive, read_bytes
from octavo.server.http.errors import HttpError
from octavo.wording import shown

MAX_PARTS: Final = 64
MAX_HEADER_BYTES: Final = 4096
MAX_TEXT_BYTES: Final = 1 << 20
"""Longest text of a field; what reads its value may do so on the event loop."""
_BOUNDARY: Final = re.compile(
    rb"""multipart/form-data\s*;(?:.*;)?\s*boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))""",
    re.IGNORECASE,
)
_PARAMETER: Final = re.compile(r""";\s*(name|filename)="((?:[^"\\]|\\.)*)\"""")


async def read_form(
    headers: dict[bytes, bytes], receive: Receive, limits: LimitConfig
) -> dict[str, Any]:
    """Read multipart/form-data under the limits; raises HttpError 400, 408, 411, 413 or 415.

    A field is text, and one with a file name bytes; fields named ``x[]`` are the list ``x``.
    """
    kind = headers.get(b"content-type", b"")
    found = _BOUNDARY.match(kind)
    if found is None:
        raise HttpError(
            415,
            f"content-type {shown(kind.decode('latin-1'))} is not multipart/form-data with a "
            "boundary",
        )
    data = await read_bytes(headers, receive, limits)
    return await asyncio.to_thread(parse_form, data, found[1] or found[2])


def parse_form(data: bytes, boundary: bytes) -> dict[str, Any]:
    """Take the parts apart."""
    _, *parts = (b"\r\n" + data).split(b"\r\n--" + boundary, MAX_PARTS + 2)
    if len(parts) > MAX_PARTS + 1:
        raise HttpError(400, f"the form has more than {MAX_PARTS} parts")
    if not parts or not parts[-1].startswith(b"--"):
        raise HttpError(400, "the form has no end: its last boundary is missing")
    fields: dict[str, Any] = {}
    for part in parts[:-1]:
        name, value = _field(part)
        if name.endswith("[]"):
            fields.setdefault(name := name[:-2], [])
            if isinstance(fields[name], list):
                fields[name].append(value)
                continue
        if name in fields:
            raise HttpError(400, f"the field {shown(name)} is given twice", param=name[:64])
        fields[name] = value
    return fields


def _field(part: bytes) -> tuple[str, str | bytes]:
    head, end, content = part.partition(b"\r\n\r\n")
    if not end or len(head) > MAX_HEADER_BYTES or not head.startswith(b"\r\n"):
        raise HttpError(400, "a part of the form has no headers, or too long ones")
    try:
        text = head.decode()
        disposition = next(
            line for line in text.split("\r\n") if line.lower().startswith("content-disposition:")
        )
        parameters = dict(_PARAMETER.findall(disposition))
        name = parameters["name"]
        if "filename" in parameters:
            return name, content
        if len(content) > MAX_TEXT_BYTES:
            raise HttpError(
                413,
                f"the field {shown(name)} is longer than {MAX_TEXT_BYTES // 2**20} MiB",
                param=name[:64],
            )
        return name, content.decode()
    except (StopIteration, KeyError):
        raise HttpError(400, "a part of the form has no name") from None
    except UnicodeDecodeError:
        raise HttpError(400, "a field of the form is not UTF-8") from None
