"""Models that see, hear or read wrongly, and decoders too; each has one mistake."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from octavo.testing.modality import ModalitySamples
from octavo_plugins.models.llava.inputs import num_rows, pixels, place_images
from octavo_plugins.models.llava.model import Llava
from octavo_plugins.models.whisper.inputs import take_sound
from octavo_plugins.models.whisper.model import Whisper
from octavo_registry import MediaLimits, ModelCapabilities, hookimpl
from octavo_registry.modalities import (
    MediaError,
    MediaItem,
    MediaLimitError,
    MediaPrompt,
    MediaSettings,
)

OCTAVO_API = "1"
LLAVA = "octavo_plugins.models.llava.inputs"
WHISPER = "octavo_plugins.models.whisper"


class Sound(Llava):
    """Nothing is wrong here."""


class LosesARow(Llava):
    def encode(self, items: Any) -> list[Tensor]:
        return [rows[:-1] for rows in super().encode(items)]


class SeesNothing(Llava):
    def encode(self, items: Any) -> list[Tensor]:
        return [torch.ones_like(rows).cumsum(0) for rows in super().encode(items)]


class SeesOtherwiseEachTime(Llava):
    def encode(self, items: Any) -> list[Tensor]:
        return [rows + torch.randn_like(rows) for rows in super().encode(items)]


class SeesItsNeighbours(Llava):
    def encode(self, items: Any) -> list[Tensor]:
        found = super().encode(items)
        return [rows + torch.stack(list(found)).mean(0) for rows in found]


class ChangesPlaces(Llava):
    def encode(self, items: Any) -> list[Tensor]:
        return list(super().encode(items))[::-1]


class LooksAway(Llava):
    def embed(self, tokens_T: Tensor, media: Any) -> Tensor:
        return super().embed(tokens_T, None)


class BeginsAgainWithEachStep(Llava):
    """The first row of an item is another, and so is that of each part of one."""

    def embed(self, tokens_T: Tensor, media: Any) -> Tensor:
        if media is not None:
            begins_M = media.tokens_M.diff(prepend=media.tokens_M[:1] - 2) > 1
            media = replace(media, rows_MW=media.rows_MW * (1 + begins_M[:, None].float()))
        return super().embed(tokens_T, media)


class CannotPlan(Llava):
    def encode_bytes(self, num_rows: int) -> int:
        return 0


class HearsALayerLate(Whisper):
    """Each layer reads what was made for the one before it."""

    def cross_rows(self, rows_MW: Tensor) -> Iterator[tuple[str, Tensor, Tensor]]:
        made = list(super().cross_rows(rows_MW))
        for (name, _, _), (_, k_MHE, v_MHE) in zip(made, made[-1:] + made[:-1], strict=True):
            yield name, k_MHE, v_MHE


class HearsTheFirstForEver(Whisper):
    """Keys and values of the first sound are those of all."""

    first: list[tuple[str, Tensor, Tensor]] | None = None

    def cross_rows(self, rows_MW: Tensor) -> Iterator[tuple[str, Tensor, Tensor]]:
        if self.first is None:
            self.first = list(super().cross_rows(rows_MW))
        yield from self.first


def place_by_value(prompt: MediaPrompt, settings: MediaSettings) -> MediaPrompt:
    for item in prompt.media:
        assert item.value.size
    return place_images(prompt, settings)


def place_one_too_few(prompt: MediaPrompt, settings: MediaSettings) -> MediaPrompt:
    placed = place_images(prompt, settings)
    count = num_rows(settings) - 1
    return replace(
        placed, placeholders=[replace(each, length=count) for each in placed.placeholders]
    )


def place_if_given(prompt: MediaPrompt, settings: MediaSettings) -> MediaPrompt:
    return place_images(prompt, settings) if prompt.media else prompt


def take_a_row_less(prompt: MediaPrompt, settings: MediaSettings) -> MediaPrompt:
    taken = take_sound(prompt, settings)
    return replace(taken, cross_rows=taken.cross_rows - 1)


def pixels_of_none(modality: str, item: MediaItem, settings: MediaSettings) -> Mapping[str, Tensor]:
    made = pixels(modality, item, settings)
    return {**made, "pixels": torch.zeros_like(made["pixels"])}


MODELS: Mapping[str, str] = {
    "LosesARow": "an item has as many rows as placeholders",
    "CannotPlan": "an item has as many rows as placeholders",
    "SeesNothing": "an item's rows are those of its content",
    "SeesOtherwiseEachTime": "an item's rows are those of its content",
    "SeesItsNeighbours": "items together have the rows that each has alone",
    "ChangesPlaces": "items together have the rows that each has alone",
    "LooksAway": "other content and another order decide what follows",
    "BeginsAgainWithEachStep": "with media and text beside them the same in chunks of 7 tokens",
}
"""The check that must fail."""
FUNCTIONS: Mapping[str, tuple[str, str, str]] = {
    "PlacesByValue": (
        f"{__name__}:place_by_value",
        f"{LLAVA}:pixels",
        "an item that is kept is placed without its value",
    ),
    "PlacesOneTooFew": (
        f"{__name__}:place_one_too_few",
        f"{LLAVA}:pixels",
        "an item has as many rows as placeholders",
    ),
    "PlacesIfGiven": (
        f"{__name__}:place_if_given",
        f"{LLAVA}:pixels",
        "text with a place for an item has one",
    ),
    "MapsNothing": (
        f"{LLAVA}:place_images",
        f"{__name__}:pixels_of_none",
        "an item's rows are those of its content",
    ),
}
ACROSS: Mapping[str, tuple[str, str, str]] = {
    "HearsALayerLate": (
        f"{__name__}:HearsALayerLate",
        f"{WHISPER}.inputs:take_sound",
        "logits at every position equal octavo_plugins.models.whisper.reference:Reference",
    ),
    "HearsTheFirstForEver": (
        f"{__name__}:HearsTheFirstForEver",
        f"{WHISPER}.inputs:take_sound",
        "other content and another order decide what follows",
    ),
    "TakesARowLess": (
        f"{WHISPER}.model:Whisper",
        f"{__name__}:take_a_row_less",
        "an item has as many rows as placeholders",
    ),
}
"""Of models whose layers read an item by cross attention: model, input processor, check."""


@hookimpl
def register_models(models: Any) -> None:
    capabilities = ModelCapabilities(
        modalities=("image",), conformance="octavo_plugins.models.llava.conformance:VARIANTS"
    )
    for name in ("Sound", *MODELS):
        models.add(name, f"{__name__}:{name}", capabilities=capabilities)
    for name in FUNCTIONS:
        models.add(name, f"{__name__}:Sound", capabilities=capabilities)
    models.add("WithoutExamples", f"{__name__}:Sound", capabilities=NO_EXAMPLES)
    for name, (target, _, _) in ACROSS.items():
        models.add(name, target, capabilities=HEARS)


NO_EXAMPLES = ModelCapabilities(modalities=("image",))
HEARS = ModelCapabilities(modalities=("audio",), reference=f"{WHISPER}.reference:Reference")


@hookimpl
def register_inputs(inputs: Any) -> None:
    for name in ("Sound", "WithoutExamples", *MODELS):
        inputs.add(name, f"{LLAVA}:place_images")
    for name, (target, _, _) in FUNCTIONS.items():
        inputs.add(name, target)
    for name, (_, target, _) in ACROSS.items():
        inputs.add(name, target, special_tokens=False)


@hookimpl
def register_multimodal(mm: Any) -> None:
    for name in ("Sound", "WithoutExamples", *MODELS):
        mm.add(name, f"{LLAVA}:pixels")
    for name, (_, target, _) in FUNCTIONS.items():
        mm.add(name, target)
    for name in ACROSS:
        mm.add(name, f"{WHISPER}.inputs:samples", options=f"{WHISPER}.inputs:options")


class Numbers:
    """A sound decoder: bytes are numbers between brackets."""

    def decode(self, data: bytes, limits: MediaLimits, options: Any) -> bytes:
        if data[:1] != b"[" or data[-1:] != b"]":
            raise MediaError("it has no brackets")
        limits.check_time()
        limits.reserve(len(data))
        if len(data) > 100:
            raise MediaLimitError("it is long")
        return data[1:-1]

    def convert(self, given: Any, limits: MediaLimits, options: Any) -> bytes:
        if not isinstance(given, tuple):
            raise MediaError("it is no tuple")
        return bytes(given)

    def is_item(self, given: Sequence[Any]) -> bool:
        return isinstance(given[0], int)

    def content(self, value: bytes) -> Iterator[bytes]:
        yield value


class KnowsOneItem(Numbers):
    def content(self, value: bytes) -> Iterator[bytes]:
        yield b"one" if value in (b"1", b"1,2") else value


class Counts(Numbers):
    numbers = itertools.count()

    def decode(self, data: bytes, limits: MediaLimits, options: Any) -> bytes:
        return super().decode(data, limits, options) + b"%d" % next(self.numbers)


class KnowsOneObject(Numbers):
    def convert(self, given: Any, limits: MediaLimits, options: Any) -> bytes:
        return super().convert(given, limits, options)[:0]


class TakesListsForItems(Numbers):
    def is_item(self, given: Sequence[Any]) -> bool:
        return True


class ReadsAnything(Numbers):
    def decode(self, data: bytes, limits: MediaLimits, options: Any) -> bytes:
        limits.check_time()
        limits.reserve(len(data))
        if len(data) > 100:
            raise MediaLimitError("it is long")
        return data


class Breaks(Numbers):
    def decode(self, data: bytes, limits: MediaLimits, options: Any) -> bytes:
        if len(data) == 1:
            raise ZeroDivisionError("inside")
        return super().decode(data, limits, options)


class TakesAnyObject(Numbers):
    def convert(self, given: Any, limits: MediaLimits, options: Any) -> bytes:
        return bytes(given) if isinstance(given, tuple) else b""


class AsksForNothing(Numbers):
    def decode(self, data: bytes, limits: MediaLimits, options: Any) -> bytes:
        return super().decode(data, replace(limits, reserve=lambda count: None), options)


class HasNoClock(Numbers):
    def decode(self, data: bytes, limits: MediaLimits, options: Any) -> bytes:
        return super().decode(data, replace(limits, deadline=time.monotonic() + 60), options)


class Explodes(Numbers):
    def decode(self, data: bytes, limits: MediaLimits, options: Any) -> bytes:
        if len(data) > 100:
            bytearray(400 << 20)[::4096] = b"x" * (400 << 8)
        return super().decode(data, limits, options)


DECODERS: Mapping[str, str] = {
    "KnowsOneItem": "the same bytes are the same item, others another",
    "Counts": "the same bytes are the same item, others another",
    "KnowsOneObject": "given objects are items, each another",
    "TakesListsForItems": "a list of items is no item",
    "ReadsAnything": "broken files are refused",
    "Breaks": "damaged files are read or refused, and nothing else happens",
    "TakesAnyObject": "objects of another kind are refused",
    "AsksForNothing": "memory is asked for before it is taken",
    "HasNoClock": "decoding ends when its time is over",
    "Explodes": "bombs are refused, in no memory",
}


def samples() -> ModalitySamples:
    return ModalitySamples(
        encoded={"one": b"[1]", "two": b"[1,2]"},
        given={"three": (3,), "four": (4, 4)},
        broken={"half": b"[1", "text": b"text"},
        bombs={"long": b"[" + b"1" * 200 + b"]"},
    )


@hookimpl
def register_modalities(modalities: Any) -> None:
    for name in ("Numbers", *DECODERS):
        modalities.add(name, f"{__name__}:{name}", samples=f"{__name__}:samples")
    modalities.add("WithoutSamples", f"{__name__}:Numbers")
