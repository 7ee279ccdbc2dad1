"""What requests carry for plugins, looked at by those that will read it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from octavo.errors import BadRequestError, OctavoError, ParameterError, PluginError
from octavo_registry import PluginHost


class ExtraArgsCheck:
    """Asks the logits processors that look at requests before they are queued."""

    def __init__(self, host: PluginHost, processors: Iterable[str]) -> None:
        """Their classes are imported here; those without ``validate`` are passed over."""
        self._host = host
        made = {name: host.logits_processors.load(name) for name in processors}
        self._checks = {
            name: host.logits_processors.bind(name, make.validate)
            for name, make in made.items()
            if hasattr(make, "validate")
        }

    def __call__(self, extra_args: Mapping[str, Any]) -> None:
        """Raise for what one of them does not take."""
        for name, validate in self._checks.items():
            plugin = self._host.logits_processors.info(name).plugin
            call = f"logits processor {name!r}, validate"
            with self._host.faults.guard(plugin, call, request=True):
                try:
                    answer = validate(extra_args)
                except (BadRequestError, PluginError):
                    raise
                except OctavoError as error:
                    raise ParameterError(str(error), param="extra_args") from error
                if answer is not None:
                    raise TypeError(f"it returned {type(answer).__name__}, not None: it must raise")
