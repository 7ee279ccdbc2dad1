"""Logits processors of plugins, as a step runs them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from octavo_registry import LogitsProcessor, PluginHost
from octavo_registry.faults import one_line

log = logging.getLogger(__name__)


class GuardedProcessor:
    """One processor, whose failures are counted and named, and the slots it is attached to."""

    def __init__(
        self, name: str, host: PluginHost, *, vocab_size: int, device: torch.device
    ) -> None:
        self._plugin = host.logits_processors.info(name).plugin
        self._call = f"logits processor {name!r}"
        self._faults = host.faults
        make = host.logits_processors.load(name)
        with self._faults.guard(self._plugin, self._call, request=True):
            self._inner: LogitsProcessor = make(vocab_size, device)
        self._slots: set[int] = set()

    def attach(self, slot: int, extra_args: Mapping[str, Any]) -> None:
        """Begin with a slot's new sequence."""
        with self._faults.guard(self._plugin, self._call, request=True):
            self._inner.attach(slot, extra_args)
        self._slots.add(slot)

    def detach(self, slot: int) -> None:
        """End with a slot's sequence; nothing where its ``attach`` has raised or never came.

        A failure is counted and logged: no request is left to fail for it.
        """
        if slot not in self._slots:
            return
        self._slots.remove(slot)
        try:
            with self._faults.guard(self._plugin, self._call, request=True):
                self._inner.detach(slot)
        except Exception as error:
            log.warning("%s failed to detach slot %d: %s", self._call, slot, one_line(error))

    def apply(self, logits_RV: Tensor, slots_R: Tensor) -> Tensor:
        """Change the logits of a step's rows."""
        with self._faults.guard(self._plugin, self._call, request=True):
            changed_RV = self._inner.apply(logits_RV, slots_R)
            # A wider one would give ids out of the vocabulary, which break a device at the next
            # step; another number of rows would give a row's tokens to another.
            if (
                not isinstance(changed_RV, Tensor)
                or changed_RV.shape != logits_RV.shape
                or changed_RV.dtype != logits_RV.dtype
            ):
                raise TypeError(
                    f"apply returned {_described(changed_RV)}, not {_described(logits_RV)}"
                )
        return changed_RV


def _described(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{value.dtype} of shape {list(value.shape)}"
    return type(value).__name__
