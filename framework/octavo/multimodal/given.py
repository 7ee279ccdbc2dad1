"""The forms in which media may be given with a prompt."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from octavo.multimodal.encoded import SUFFIX, is_encoded
from octavo.multimodal.errors import BadMediaError
from octavo.wording import shown
from octavo_registry.modalities import ModalityDecoder

MAX_UUID_CHARS: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenMedia:
    """One item, not read yet."""

    modality: str
    data: Any
    """A URL, bytes, a path, or a value that the modality's decoder converts. None with a ``uuid``:
    an item that was sent before."""
    uuid: str | None = None
    """The user's name for the content, by which it can come again without data."""
    place: str
    """What an error calls it."""
    is_encoded: bool = False
    """It is not the item but its rows, as ``octavo.multimodal.encoded`` reads them."""
    is_value: bool = False
    """Its data is the item also where that is a string, and no URL."""

    @property
    def is_elsewhere(self) -> bool:
        """Whether reading it waits for a network or a disk."""
        if isinstance(self.data, str):
            return not self.is_value and self.data[:5].lower() != "data:"
        return isinstance(self.data, os.PathLike)

    @property
    def content_kind(self) -> str:
        """What its content is hashed with: rows are other content than what they were made of."""
        return f"{self.modality}{SUFFIX}" if self.is_encoded else self.modality

    def __post_init__(self) -> None:
        uuid = self.uuid
        if uuid is None:
            if self.data is None:
                raise BadMediaError(f"{self.place}: None is no item")
        elif (
            not isinstance(uuid, str)
            or not 0 < len(uuid) <= MAX_UUID_CHARS
            or any("\ud800" <= letter <= "\udfff" for letter in uuid)  # which has no UTF-8
        ):
            raise BadMediaError(
                f"{self.place}: uuid={shown(uuid)} is no text of 1 to {MAX_UUID_CHARS} letters",
                param="multi_modal_uuids",
            )


def split_media(
    data: Mapping[str, Any],
    uuids: Mapping[str, Any] | None,
    decoders: Mapping[str, ModalityDecoder],
    *,
    takes_rows: bool = False,
    strings: Collection[str] = (),
) -> list[GivenMedia]:
    """Make a list of what ``multi_modal_data`` has: one item or a list of them by modality.

    ``multi_modal_uuids`` has the same form, with None for an item without a name. ``takes_rows``:
    tensors that look like rows are taken as such. ``strings`` are modalities of which a string is
    an item, and no URL.
    """
    names = uuids or {}
    for modality in names:
        if modality not in data:
            raise BadMediaError(
                f"multi_modal_uuids names {shown(modality)}, of which multi_modal_data has none",
                param="multi_modal_uuids",
            )
    given = []
    for modality, value in data.items():
        is_rows = partial(is_encoded, modality) if takes_rows else _never
        items = _split(value, decoders[modality], is_rows)
        named = names.get(modality)
        named = named if isinstance(named, (list, tuple)) else [named] * min(len(items), 1)
        if names.get(modality) is None:
            named = [None] * len(items)
        if len(named) != len(items):
            raise BadMediaError(
                f"multi_modal_uuids has {len(named)} of {modality} for {len(items)} items",
                param="multi_modal_uuids",
            )
        for number, (item, uuid) in enumerate(zip(items, named, strict=True), start=1):
            place = modality if len(items) == 1 else f"{modality} {number}"
            encoded = is_rows(item)
            given.append(
                GivenMedia(
                    modality=modality,
                    data=item,
                    uuid=uuid,
                    place=place,
                    is_encoded=encoded,
                    is_value=modality in strings,
                )
            )
    return given


def _split(value: Any, decoder: ModalityDecoder, is_rows: Callable[[Any], bool]) -> Sequence[Any]:
    if isinstance(value, (list, tuple)):
        # Not all: a sound may be such a tensor beside its rate.
        is_item = value and not all(map(is_rows, value)) and decoder.is_item(value)
        return [value] if is_item else value
    is_stack = getattr(value, "ndim", 0) == 3 and len(value) > 0 and is_rows(value[0])
    return list(value) if is_stack else [value]


def _never(given: Any) -> bool:
    return False


def content_hash(
    kind: str, modality: str, options: Mapping[str, Any], parts: Iterable[bytes | memoryview]
) -> str:
    """Return SHA-256 in hex of content of one kind ("encoded", "value").

    What is decoded with other options is other content.
    """
    head = json.dumps([kind, modality, options], sort_keys=True)
    digest = hashlib.sha256(f"{len(head)} {head}".encode())
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
