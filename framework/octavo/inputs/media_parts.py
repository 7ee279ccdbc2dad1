"""Images, videos and sounds in chat messages: taken out in order, each leaving a plain part."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from octavo.errors import MessageError
from octavo.multimodal.encoded import SUFFIX
from octavo.multimodal.given import GivenMedia
from octavo.wording import shown

Message = Mapping[str, Any]

PARTS: Final[Mapping[str, str]] = {
    "image": "image",
    "image_url": "image",
    "video": "video",
    "video_url": "video",
    "audio": "audio",
    "audio_url": "audio",
    "input_audio": "audio",
    "image_embeds": "image",
    "video_embeds": "video",
    "audio_embeds": "audio",
}
"""The modality of a part, by its type."""
DETAILS: Final = ("auto", "low", "high", "original")
"""What OpenAI's clients may send. What a picture costs follows from its size alone: it changes
nothing."""
AUDIO_FORMATS: Final = ("wav", "mp3", "flac", "ogg", "opus", "m4a", "webm")


def modality_of(part: object, modalities: Collection[str] = ()) -> str | None:
    """The modality of a part; None: it is none of media.

    ``modalities`` are the model's: a plugin's own has parts of its name, and of that and "_url".
    """
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(kind, str):
        return None
    name = kind.removesuffix("_url")
    return PARTS.get(kind) or (name if name in modalities else None)


def has_media(messages: object, modalities: Collection[str] = ()) -> bool:
    """Whether any message has a part that is no text; nothing is checked."""
    return isinstance(messages, (list, tuple)) and any(
        modality_of(part, modalities)
        for message in messages
        if isinstance(message, Mapping)
        for part in _parts(message)
    )


def take_media(
    messages: Sequence[Message], modalities: Collection[str] = (), *, takes_embeds: bool = False
) -> tuple[list[Message], list[GivenMedia]]:
    """Return the messages with parts ``{"type": modality}`` for media, and what was there.

    A URL or a Python object under the part's type: ``{"type": "image_url", "image_url": {"url":
    "data:..."}}``, ``{"type": "image", "image": an image of Pillow}``. ``takes_embeds``: also rows,
    a safetensors file in base64 or tensors, ``{"type": "image_embeds", "image_embeds": "..."}``.
    With a ``"uuid"`` a part names its item, and may leave it out where it was sent before.
    """
    taken: list[GivenMedia] = []
    plain: list[Message] = []
    for index, message in enumerate(messages):
        parts = []
        for place, part in enumerate(_parts(message)):
            modality = modality_of(part, modalities)
            if modality is not None:
                where = f"messages[{index}].content[{place}]"
                is_rows = part["type"].endswith(SUFFIX)
                if is_rows and modality in modalities and not takes_embeds:
                    raise MessageError(
                        f"{where}: {part['type']} needs enable_mm_embeds (--enable-mm-embeds)"
                    )
                taken.append(_item(part, part["type"], modality, where))
                part = {"type": modality}
            parts.append(part)
        plain.append({**message, "content": parts} if _parts(message) else message)
    return plain, taken


def _parts(message: Message) -> Sequence[Any]:
    content = message.get("content")
    return content if isinstance(content, (list, tuple)) else ()


def _item(part: Mapping[str, Any], kind: str, modality: str, where: str) -> GivenMedia:
    for key in part:
        if key not in ("type", kind, "uuid"):
            raise MessageError(f"{where} has no key {shown(key)}; known: type, {kind}, uuid")
    given = part.get(kind)
    is_encoded = kind.endswith(SUFFIX)
    if given is None:
        if part.get("uuid") is None:
            raise MessageError(f"{where}.{kind} is missing; only a uuid can stand without it")
    elif is_encoded:
        given = f"data:;base64,{given}" if isinstance(given, str) else given
    elif isinstance(given, Mapping) and (kind in PARTS or kind.endswith("_url")):
        given = _sound(given, where) if kind == "input_audio" else _url(given, f"{where}.{kind}")
    elif kind == "input_audio" or (kind.endswith("_url") and not isinstance(given, str)):
        raise MessageError(f"{where}.{kind}={shown(given)} must be an object")
    return GivenMedia(
        modality=modality,
        data=given,
        uuid=part.get("uuid"),
        place=f"{where} ({kind})",
        is_encoded=is_encoded,
    )


def _url(given: Mapping[str, Any], where: str) -> str:
    for key, value in given.items():
        if key == "detail" and value not in (None, *DETAILS):
            known = ", ".join(DETAILS)
            raise MessageError(f"{where}.detail={shown(value)} is not known; known: {known}")
        if key not in ("url", "detail"):
            raise MessageError(f"{where} has no key {shown(key)}; known: url, detail")
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
