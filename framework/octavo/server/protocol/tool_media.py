"""Media and documents that results of tools bring, and that the model may not be able to read."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

from octavo.inputs.media_parts import PARTS, modality_of
from octavo.server.protocol.documents import UnreadableError
from octavo.server.protocol.notes import Notes

EVERY_MODALITY: Final = frozenset(PARTS.values())


def given_by_tool(
    where: str, read: Callable[[], list[dict[str, Any]]], modalities: Collection[str], notes: Notes
) -> list[dict[str, Any]]:
    """The parts that ``read`` returns; a text tells the model of one that it cannot be shown.

    Were it refused, as what a user shows is, so would be all further requests of a conversation
    whose agent has looked at a picture.
    """
    try:
        parts = read()
    except UnreadableError as error:
        return [_told(where, error.kind, notes)]
    made = []
    for part in parts:
        modality = modality_of(part, modalities)
        is_shown = modality is None or modality in modalities
        made.append(part if is_shown else _told(where, f"{modality} data", notes))
    return made


def _told(where: str, what: str, notes: Notes) -> dict[str, Any]:
    notes.add(where, f"is {what}, which the model cannot read and is told of")
    return {"type": "text", "text": f"({what}, which cannot be read here)"}
