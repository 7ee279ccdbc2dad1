"""What quantization_config says, of which every entry must be known."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from octavo.errors import ConfigError, ModelError
from octavo.layers.apart import Apart
from octavo.layers.formats import FormatExperts, FormatLinear, WeightFormat
from octavo_registry import Axis, ExpertsSite, Site

Method = FormatLinear | FormatExperts | Apart | None
"""What multiplies at a site; None: its weights are plain."""


class Settings:
    """Reads entries one by one; ``finish`` refuses those that nobody asked for."""

    def __init__(self, config: Mapping[str, Any], where: str = "quantization_config") -> None:
        if not config:
            raise ConfigError(
                "these weights are plain, and cannot be quantized while they load yet; leave "
                "quantization out, or give a checkpoint that is quantized"
            )
        self._config, self._where = dict(config), where
        self._asked: set[str] = set()

    def take(self, key: str, default: Any, *allowed: Any) -> Any:
        """Return an entry, which is one of ``allowed`` if any are given."""
        self._asked.add(key)
        value = self._config.get(key, default)
        if allowed and (value, type(value)) not in [(each, type(each)) for each in allowed]:
            known = ", ".join(map(repr, allowed))
            raise ConfigError(f"{key}={value!r} in {self._where} cannot be read; known: {known}")
        return value

    def group_size(self, word: int) -> int:
        """Return how many inputs share a scale; -1: all of them."""
        size = self.take("group_size", 128)
        if type(size) is not int or size == 0 or size < -1 or (size > 0 and size % word):
            raise ConfigError(
                f"group_size={size!r} in {self._where} must be -1 or a multiple of {word}"
            )
        return size

    def names(self, *keys: str) -> tuple[str, ...]:
        """Return a list of names, under whichever key it stands."""
        found: list[str] = []
        for key in keys:
            value = self.take(key, None) or []
            if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
                raise ConfigError(f"{key} in {self._where} must be a list of names, not {value!r}")
            found += value
        return tuple(found)

    def skip(self, *keys: str) -> None:
        """Name entries that say nothing of how weights are stored."""
        self._asked.update(keys)

    def finish(self) -> None:
        """Raise for an entry that was not asked for."""
        for key in sorted(self._config.keys() - self._asked):
            raise ConfigError(
                f"{key}={self._config[key]!r} in {self._where} is not known; the weights may be "
                "stored in a way that this cannot read"
            )


def groups_of(group_size: int) -> tuple[Axis, tuple[int, ...]]:
    """Return the axis of groups of inputs, and its length where one group has them all."""
    return (Axis("in", group_size), ()) if group_size > 0 else (Axis(), (1,))


def is_named(name: str, patterns: Iterable[str]) -> bool:
    """Whether a list names a linear: wholly, by some of its dotted words, or by a pattern.

    Patterns begin with "re:", or have asterisks.
    """
    return any(_fits(name, pattern) for pattern in patterns)


def _fits(name: str, pattern: str) -> bool:
    if pattern.startswith("re:"):
        return re.match(pattern[3:], name) is not None
    if "*" in pattern:
        return fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(name, f"{pattern}.*")
    return f".{pattern.strip('.')}." in f".{name}."


def method_for(
    site: Site | ExpertsSite,
    form_of: Callable[[str], WeightFormat | None],
    linear: type[FormatLinear] = FormatLinear,
    experts: type[FormatExperts] = FormatExperts,
) -> Method:
    """Return the method of a site, by the form that each of its linears is stored in."""
    forms = {name: form_of(name) for name in site.names}
    first = next(iter(forms.values()))
    other = next((name for name, form in forms.items() if form != first), None)
    if isinstance(site, ExpertsSite):
        if other is not None:
            raise ModelError(
                f"{other} and {site.names[0]} are stored in different forms, and all experts of a "
                "layer are multiplied together; that cannot be done yet"
            )
        return None if first is None else experts(first)
    if other is not None:
        own = [forms[part.name] for part in site.parts]
        return Apart([None if form is None else linear(form) for form in own])
    return None if first is None else linear(first)


class OneForm:
    """A quantization that stores all linears and experts alike, but those that a list names."""

    _form: WeightFormat
    _plain: tuple[str, ...]

    def method_of(self, site: Site | ExpertsSite) -> Method:
        """See ``Quantization``."""
        if site.kind in ("router", "embedding", "head"):
            return None
        return method_for(site, self._form_of)

    def _form_of(self, name: str) -> WeightFormat | None:
        return None if is_named(name, self._plain) else self._form
