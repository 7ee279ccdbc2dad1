"""Files within a request, of which a model reads the text."""

from __future__ import annotations

import binascii
from collections.abc import Mapping
from typing import Any, Final

from octavo.errors import MessageError
from octavo.wording import shown

MAX_CHARS: Final = 16 * 2**20
"""Longest file in base64, which is more than any context takes."""


class UnreadableError(MessageError):
    """A file that is no text; ``kind`` says what it is."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


def file_text(where: str, file: Mapping[str, Any]) -> str:
    """The text of a file, behind its name; raises for one that is not here, or no text."""
    if "file_id" in file:
        raise MessageError(f"{where}.file_id: this server keeps no files; send the file itself")
    key = "file_data" if "file_data" in file else "file_url"
    given, name = file.get(key), file.get("filename", "")
    if not isinstance(given, str):
        raise MessageError(f"{where}.file_data must be text")
    if not isinstance(name, str):
        raise MessageError(f"{where}.filename must be text")
    if key == "file_url" and given[:5].lower() != "data:":
        raise MessageError(f"{where}.file_url: files are not fetched here; send file_data")
    return document_text(f"{where}.{key}", given, name)


def document_text(where: str, given: str, name: str | None) -> str:
    """The text of base64 or of a data URL, behind its name; raises for what is no text.

    What a data URL says of its type is not asked: clients guess it.
    """
    if len(given) > MAX_CHARS:
        raise MessageError(f"{where} has {len(given)} characters; at most {MAX_CHARS}")
    data = given
    if given[:5].lower() == "data:":
        head, _, data = given.partition(",")
        if not head.lower().endswith(";base64"):
            raise MessageError(f"{where}: a data URL is written data:TYPE;base64,DATA")
    data = data.replace("\r", "").replace("\n", "")
    try:
        raw = binascii.a2b_base64(data + "=" * (-len(data) % 4), strict_mode=True)
    except ValueError as error:
        raise MessageError(f"{where} is no valid base64: {error}") from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text or raw.startswith(b"%PDF-"):
        kind = "a PDF" if raw.startswith(b"%PDF-") else "no text in UTF-8"
        message = (
            f"{where}{f' ({shown(name)})' if name else ''} is {kind}, and only texts can be read "
            "here; send its text, or its pages as images"
        )
        raise UnreadableError(message, "a PDF" if kind == "a PDF" else "a file that is no text")
    return f"{name}:\n{text}" if name else text
