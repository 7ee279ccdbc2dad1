"""``mm_processor_kwargs`` of a request: entries of the model's processors, for its items alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from octavo.errors import PromptError
from octavo.params import shown
from octavo_registry.modalities import MediaSettings

NAME: Final = "mm_processor_kwargs"


def with_kwargs(
    settings: MediaSettings, given: Mapping[str, Any], known: Mapping[str, Any]
) -> MediaSettings:
    """The settings with a request's entries in the place of the folder's, for all modalities.

    ``known`` are those of the model's registration: the least and the most of each, so that no
    request makes a picture larger than a server can bear.
    """
    _check(NAME, given, known)
    return replace(
        settings,
        processors={
            modality: _merged(entries, given) for modality, entries in settings.processors.items()
        },
    )


def _merged(entries: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(entries)
    for name, value in given.items():
        old = entries.get(name)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            value = {**old, **value}
        merged[name] = value
    return merged


def _check(where: str, given: object, known: Mapping[str, Any]) -> None:
    if not isinstance(given, Mapping):
        raise PromptError(f"{where} must be a dict, not {type(given).__name__}", param=NAME)
    for name, value in given.items():
        if name not in known:
            names = ", ".join(known) or "none, the model's items are read in one way"
            raise PromptError(f"{where} has no entry {shown(name)}; known: {names}", param=NAME)
        bounds = known[name]
        if isinstance(bounds, Mapping):
            _check(f"{where}.{name}", value, bounds)
            continue
        least, most = bounds
        kinds = (int,) if isinstance(least, int) else (int, float)
        if type(value) not in kinds or not least <= value <= most:
            kind = "a whole number" if kinds == (int,) else "a number"
            raise PromptError(
                f"{where}.{name}={shown(value)} must be {kind} from {least} to {most}", param=NAME
            )
