"""The parts of items of /v1/responses, as parts of a chat's messages."""

from __future__ import annotations

from typing import Any, Final

from octavo.errors import MessageError
from octavo.server.protocol.conversation import (
    CACHE_HINTS,
    check_hints,
    read_keys,
    read_media,
    text_of,
)
from octavo.server.protocol.documents import file_text
from octavo.server.protocol.notes import Notes
from octavo.wording import shown

_TEXTS: Final = {
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "reasoning_text": "text",
    "summary_text": "text",
}
"""Types of parts that are text, and the key that has it."""
_KEYS: Final = {
    "input_text": {"type", "text"} | CACHE_HINTS,
    "output_text": {"type", "text", "annotations", "logprobs"},
    "refusal": {"type", "refusal"},
    "reasoning_text": {"type", "text"},
    "summary_text": {"type", "text"},
    "input_image": {"type", "image_url", "detail", "file_id"} | CACHE_HINTS,
    "input_file": {"type", "file_data", "filename", "file_url", "file_id", "detail"} | CACHE_HINTS,
    "input_audio": {"type", "input_audio"} | CACHE_HINTS,
}
OF_MESSAGES: Final = ("input_text", "output_text", "refusal", "input_image", "input_file",
                      "input_audio")  # fmt: skip
OF_OUTPUTS: Final = ("input_text", "input_image", "input_file")
OF_THOUGHTS: Final = ("reasoning_text", "summary_text")


def chat_part(where: str, given: Any, notes: Notes, kinds: tuple[str, ...]) -> dict[str, Any]:
    """The part as a chat has it; files become their text."""
    kind = given.get("type") if isinstance(given, dict) else None
    if kind not in kinds:
        raise MessageError(f"{where}.type is {shown(kind)}; known: {', '.join(kinds)}")
    part = read_keys(where, given, _KEYS[kind], notes)
    check_hints(where, part)
    if "file_id" in part:
        raise MessageError(f"{where}.file_id: this server keeps no files; send the file itself")
    if kind == "input_image":
        image = {"url": text_of(where, part, "image_url"), "detail": part.get("detail")}
        image = read_media(where, image, {"url", "detail"}, notes)
        return {"type": "image_url", "image_url": image}
    if kind == "input_audio":
        return {"type": "input_audio", "input_audio": part.get("input_audio")}
    if kind == "input_file":
        return {"type": "text", "text": file_text(where, part)}
    return {"type": "text", "text": text_of(where, part, _TEXTS[kind])}


def part_text(where: str, given: Any, notes: Notes, kinds: tuple[str, ...]) -> str:
    """The text of a part of kinds that are text."""
    text: str = chat_part(where, given, notes, kinds)["text"]
    return text
