"""``mm_processor_kwargs``: what a user or a request sets of the model's processors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from octavo.config.media import MediaConfig
from octavo.errors import PromptError
from octavo.wording import shown
from octavo_registry.modalities import MediaSettings

NAME: Final = "mm_processor_kwargs"
IO: Final = "media_io_kwargs"
IO_OF_VIDEOS: Final = ("num_frames", "fps")
SAMPLED: Final = ("fps", "min_frames", "max_frames")
"""Entries that ``num_frames`` leaves without a meaning."""


def read_kwargs(
    given: object, known: Mapping[str, Any], before: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Check the entries, and put them in the place of those that were set ``before``.

    ``known`` are the model's, as its plugin registers them; what it has under two names comes back
    under one.
    """
    found: dict[str, Any] = {}
    for path, value, bounds in _leaves((), given, known):
        where = ".".join((NAME, *path))
        if isinstance(bounds, str):
            path, bounds = (bounds,), known[bounds]
        _check_value(where, value, bounds)
        into = found
        for name in path[:-1]:
            into = into.setdefault(name, {})
        if path[-1] in into:
            raise PromptError(f"{where} is set twice, under two names", param=NAME)
        into[path[-1]] = value
    for name in SAMPLED:
        if name in found and "num_frames" in found:
            raise PromptError(f"{NAME} has num_frames and {name}; give one of them", param=NAME)
    asked = _merged(before or {}, found)
    for name, least in asked.items():
        other = name.replace("min_", "max_", 1)
        if name.startswith("min_") and asked.get(other, least) < least:
            raise PromptError(f"{NAME}: {name}={least} is above {other}={asked[other]}", param=NAME)
    return asked


def of_media_io(given: object) -> dict[str, Any]:
    """vLLM's ``media_io_kwargs`` as entries of ``mm_processor_kwargs``: how videos are sampled.

    There -1 is none.
    """
    found: dict[str, Any] = {}
    by_modality = given if isinstance(given, Mapping) else {"": given}
    for modality, kwargs in by_modality.items():
        if not isinstance(modality, str) or not isinstance(kwargs, Mapping):
            raise PromptError(f"{IO} must be a dict of dicts by modality", param=IO)
        for name, value in kwargs.items():
            if modality != "video" or name not in IO_OF_VIDEOS:
                raise PromptError(
                    f"{IO}.{modality}.{name} is not available; there is: "
                    f"{', '.join(f'video.{known}' for known in IO_OF_VIDEOS)}",
                    param=IO,
                )
            if value not in (None, -1):
                found[name] = value
    return found


def asked_of_all(config: MediaConfig) -> dict[str, Any]:
    """What the operator asks of the model's processors, by both names."""
    return {**of_media_io(config.media_io_kwargs), **config.mm_processor_kwargs}


def asked_by_request(
    kwargs: Mapping[str, Any] | None, media_io: Mapping[str, Any] | None
) -> Mapping[str, Any] | None:
    """What a request asks, by both names; None for nothing."""
    return kwargs if media_io is None else {**of_media_io(media_io), **(kwargs or {})}


def with_kwargs(settings: MediaSettings, asked: Mapping[str, Any]) -> MediaSettings:
    """The settings with what ``read_kwargs`` returned in the place of the folder's entries."""
    return replace(
        settings,
        processors={
            modality: _merged(entries, asked) for modality, entries in settings.processors.items()
        },
    )


def _merged(entries: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(entries)
    if "num_frames" in asked:
        for name in SAMPLED:
            merged.pop(name, None)
    elif any(name in asked for name in SAMPLED):
        merged.pop("num_frames", None)
    for name, value in asked.items():
        old = merged.get(name)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            value = {**old, **value}
        merged[name] = value
    return merged


def _leaves(
    path: tuple[str, ...], given: object, known: Mapping[str, Any]
) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Names, value and bounds of each entry; an error for one that is not known."""
    where = ".".join((NAME, *path))
    if not isinstance(given, Mapping):
        raise PromptError(f"{where} must be a dict, not {type(given).__name__}", param=NAME)
    for name, value in given.items():
        if name not in known:
            names = ", ".join(known) or "none, the model's items are read in one way"
            raise PromptError(f"{where} has no entry {shown(name)}; known: {names}", param=NAME)
        if isinstance(known[name], Mapping):
            yield from _leaves((*path, name), value, known[name])
        else:
            yield (*path, name), value, known[name]


def _check_value(where: str, value: object, bounds: tuple[float, float]) -> None:
    least, most = bounds
    kinds = (int,) if isinstance(least, int) else (int, float)
    if type(value) not in kinds or not least <= value <= most:  # type: ignore[operator]
        kind = "a whole number" if kinds == (int,) else "a number"
        raise PromptError(
            f"{where}={shown(value)} must be {kind} from {least} to {most}", param=NAME
        )
