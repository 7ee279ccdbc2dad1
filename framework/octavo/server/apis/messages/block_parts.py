"""What Anthropic's blocks show the model, as the parts of a chat's message: text and images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from octavo.errors import MessageError
from octavo.server.protocol.conversation import check_hints, read_keys, text_of
from octavo.server.protocol.documents import document_text
from octavo.server.protocol.notes import Notes
from octavo.wording import shown

SHOWN: Final = ("text", "image", "document", "search_result")
"""Types of blocks that are text or images."""
_KNOWN: Final = {
    "text": {"type", "text", "cache_control"},
    "image": {"type", "source", "cache_control"},
    "document": {"type", "source", "title", "context", "cache_control"},
    "search_result": {"type", "source", "title", "content", "cache_control"},
}
NOTED: Final = frozenset(("citations", "caller", "transformations", "toolset_name"))
"""Keys of blocks that have no effect: nothing here cites, scales pictures or runs tools."""
_SOURCE: Final = {"type", "media_type", "data", "url", "content", "file_id"}
_NOT_KEPT: Final = "files are not kept here; send it whole"


def text_part(text: str) -> dict[str, Any]:
    """A part that is text."""
    return {"type": "text", "text": text}


def block_parts(where: str, given: Mapping[str, Any], notes: Notes) -> list[dict[str, Any]]:
    """The parts that a block of one of the ``SHOWN`` types stands for."""
    kind = given["type"]
    block = read_keys(where, given, _KNOWN[kind], notes, NOTED)
    check_hints(where, block)
    match kind:
        case "text":
            return [text_part(text_of(where, block, "text"))]
        case "image":
            return [_image(f"{where}.source", block.get("source"), notes)]
        case "document":
            within = _document(f"{where}.source", block.get("source"), notes)
            about = {"source": "title", "context": "context"}
            return _marked("document", where, block, about, within)
    within = _content(f"{where}.content", block.get("content"), notes)
    return _marked("search_result", where, block, {"source": "source", "title": "title"}, within)


def _marked(
    name: str,
    where: str,
    block: Mapping[str, Any],
    about: Mapping[str, str],
    within: list[dict[str, Any]],
) -> list[dict[str, Any]]:
    """Parts between tags, behind what is said of them: Anthropic's own advice for prompts."""
    head = "".join(
        f"<{tag}>{text_of(where, block, key)}</{tag}>\n"
        for tag, key in about.items()
        if key in block
    )
    begin, end = f"<{name}>\n{head}", f"\n</{name}>"
    if len(within) == 1 and within[0]["type"] == "text":
        return [text_part(begin + within[0]["text"] + end)]
    return [text_part(begin), *within, text_part(end)]


def _image(where: str, given: Any, notes: Notes) -> dict[str, Any]:
    source = _source(where, given, notes)
    if source["type"] == "base64":
        media_type = text_of(where, source, "media_type")
        if not media_type.startswith("image/"):
            raise MessageError(f"{where}.media_type={shown(media_type)} is no image's")
        url = f"data:{media_type};base64,{text_of(where, source, 'data')}"
    elif source["type"] == "url":
        url = text_of(where, source, "url")
    else:
        raise MessageError(f"{where} is of type {shown(source['type'])}: {_NOT_KEPT} in base64")
    return {"type": "image_url", "image_url": {"url": url}}


def _document(where: str, given: Any, notes: Notes) -> list[dict[str, Any]]:
    source = _source(where, given, notes)
    match source["type"]:
        case "text":
            return [text_part(text_of(where, source, "data"))]
        case "content":
            return _content(f"{where}.content", source.get("content"), notes)
        case "base64":
            return [text_part(document_text(f"{where}.data", text_of(where, source, "data"), None))]
        case "url":
            raise MessageError(f"{where}: documents are not fetched here; send the text")
    raise MessageError(f"{where} is of type {shown(source['type'])}: {_NOT_KEPT} as text")


def _source(where: str, given: Any, notes: Notes) -> dict[str, Any]:
    if not isinstance(given, dict) or not isinstance(given.get("type"), str):
        raise MessageError(f"{where} must be an object with a type")
    return read_keys(where, given, _SOURCE, notes)


def _content(where: str, given: Any, notes: Notes) -> list[dict[str, Any]]:
    if isinstance(given, str):
        return [text_part(given)]
    if not isinstance(given, list) or not given:
        raise MessageError(f"{where} must be text or a list of blocks")
    parts: list[dict[str, Any]] = []
    for index, block in enumerate(given):
        kind = block.get("type") if isinstance(block, dict) else None
        if kind not in ("text", "image"):
            raise MessageError(f"{where}[{index}].type is {shown(kind)}; it takes text and images")
        parts += block_parts(f"{where}[{index}]", block, notes)
    return parts
