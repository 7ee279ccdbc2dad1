"""Images, videos and sounds in chat messages: taken out in order, each leaving a plain part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from octavo.errors import MessageError
from octavo.multimodal.given import GivenMedia
from octavo.params import shown

Message = Mapping[str, Any]

PARTS: Final[Mapping[str, str]] = {
    "image": "image",
    "image_url": "image",
    "video": "video",
    "video_url": "video",
    "audio": "audio",
    "audio_url": "audio",
    "input_audio": "audio",
}
"""The modality of a part, by its type."""
AUDIO_FORMATS: Final = ("wav", "mp3", "flac", "ogg", "opus", "m4a", "aac")


def has_media(messages: object) -> bool:
    """Whether any message has a part that is no text; nothing is checked."""
    return isinstance(messages, (list, tuple)) and any(
        isinstance(part, Mapping) and part.get("type") in PARTS
        for message in messages
        if isinstance(message, Mapping)
        for part in _parts(message)
    )


def take_media(messages: Sequence[Message]) -> tuple[list[Message], list[GivenMedia]]:
    """Return the messages with parts ``{"type": modality}`` for media, and what was there.

    A URL or a Python object under the part's type: ``{"type": "image_url", "image_url": {"url":
    "data:..."}}``, ``{"type": "image", "image": an image of Pillow}``.
    """
    taken: list[GivenMedia] = []
    plain: list[Message] = []
    for index, message in enumerate(messages):
        parts = []
        for place, part in enumerate(_parts(message)):
            kind = part.get("type") if isinstance(part, Mapping) else None
            if isinstance(kind, str) and kind in PARTS:
                item = _item(part, kind, f"messages[{index}].content[{place}]")
                taken.append(item)
                part = {"type": item.modality}
            parts.append(part)
        plain.append({**message, "content": parts} if _parts(message) else message)
    return plain, taken


def _parts(message: Message) -> Sequence[Any]:
    content = message.get("content")
    return content if isinstance(content, (list, tuple)) else ()


def _item(part: Mapping[str, Any], kind: str, where: str) -> GivenMedia:
    for key in part:
        if key not in ("type", kind, "uuid"):
            raise MessageError(f"{where} has no key {shown(key)}; known: type, {kind}, uuid")
    given = part.get(kind)
    if isinstance(given, Mapping):
        given = _sound(given, where) if kind == "input_audio" else _url(given, f"{where}.{kind}")
    elif kind == "input_audio" or (kind.endswith("_url") and not isinstance(given, str)):
        raise MessageError(f"{where}.{kind}={shown(given)} must be an object")
    if given is None and part.get("uuid") is None:
        raise MessageError(f"{where}.{kind} is missing")
    return GivenMedia(
        modality=PARTS[kind], data=given, uuid=part.get("uuid"), place=f"{where} ({kind})"
    )


def _url(given: Mapping[str, Any], where: str) -> str:
    for key, value in given.items():
        # What a picture costs follows from its size alone: there is no other detail.
        if key != "url" and not (key == "detail" and value in (None, "auto")):
            raise MessageError(f"{where}.{key}={shown(value)} is not known; known: url")
    url = given.get("url")
    if not isinstance(url, str):
        raise MessageError(f"{where}.url={shown(url)} must be text")
    return url


def _sound(given: Mapping[str, Any], where: str) -> str:
    where = f"{where}.input_audio"
    for key in given:
        if key not in ("data", "format"):
            raise MessageError(f"{where} has no key {shown(key)}; known: data, format")
    data, kind = given.get("data"), given.get("format")
    if not isinstance(data, str) or not isinstance(kind, str) or kind not in AUDIO_FORMATS:
        raise MessageError(
            f"{where} needs data, text in base64, and format, one of {', '.join(AUDIO_FORMATS)}"
        )
    return f"data:audio/{kind};base64,{data}"
