"""vLLM's flags beside ours: those that work, those that are taken and told, those that are not."""

from __future__ import annotations

import logging
from argparse import SUPPRESS, Action, ArgumentTypeError, Namespace
from collections.abc import Sequence
from typing import Any, Final

from octavo.cli.numbers import whole_number
from octavo.cli.parser import Parser, Several
from octavo.errors import ConfigError
from octavo.vllm_names import Verdict, as_flags, verdicts

log = logging.getLogger(__name__)

BYTES_IN: Final = {"kv_cache_memory_gib": 2**30, "max_header_kib": 2**10}
"""Bytes in our unit, for flags whose name of vLLM's counts bytes."""
_NOTED: Final = "vllm_flags_noted"


def add_vllm_flags(parser: Parser) -> None:
    """Add, without help, each of its flags that the parser has no other meaning for."""
    taken = parser.flags()
    for verdict in verdicts():
        flag = "--" + verdict.name.replace("_", "-")
        if flag in taken:
            continue
        names = [flag] if verdict.takes != "nothing" else [flag, f"--no-{flag[2:]}"]
        made: type[Action]
        settings: dict[str, Any] = {"verdict": verdict}
        if verdict.kind == "renamed":
            target = taken.get(as_flags(verdict.text))
            if target is None:
                continue
            made, settings = Renamed, {"target": target, "ours": as_flags(verdict.text)}
        else:
            made = NotedFlag if verdict.kind == "noted" else RefusedFlag
        action = made(
            names,
            dest=verdict.name,
            nargs=0 if verdict.takes == "nothing" else None,
            default=SUPPRESS,
            help=SUPPRESS,
            **settings,
        )
        # Not add_argument, which formats a help text to check it: 20 ms for two hundred flags.
        parser._add_action(action)


def tell_noted(args: Namespace) -> None:
    """Write a line for each flag that was taken and has no effect."""
    for flag, text in vars(args).pop(_NOTED, {}).items():
        log.warning("%s has no effect: %s", flag, as_flags(text))


class Renamed(Action):
    """Does what our flag does."""

    def __init__(self, *names: Any, target: Action, ours: str, **settings: Any) -> None:
        super().__init__(*names, **settings)
        self._target = target
        self._ours = ours

    def __call__(
        self, parser: Any, namespace: Namespace, values: Any, option_string: str | None = None
    ) -> None:
        """Store the value as our flag does."""
        flag = option_string or self.option_strings[0]
        if self.nargs == 0:
            ours = self._ours
            if flag.startswith("--no-"):
                ours = f"--{ours[5:]}" if ours.startswith("--no-") else f"--no-{ours[2:]}"
            self._target(parser, namespace, values, ours)
            return
        try:
            value = self._value(values)
        except (ArgumentTypeError, ValueError) as error:
            parser.error(f"argument {flag}: {error}")
        self._target(parser, namespace, value, self._ours)

    def _value(self, text: str) -> Any:
        if isinstance(self._target, Several):
            texts = text.split(",")
            return [texts] if self._target.nargs else texts
        unit = BYTES_IN.get(self._target.dest)
        if unit is not None:
            text = str(whole_number(text) / unit)
        read = self._target.type
        return read(text) if callable(read) else text


class Judged(Several):
    """Takes a flag of vLLM's that none of ours stands for."""

    def __init__(self, *names: Any, verdict: Verdict, **settings: Any) -> None:
        super().__init__(*names, **settings)
        self._verdict = verdict
        self.is_several = verdict.takes == "values"


class NotedFlag(Judged):
    """Takes a flag that needs no effect."""

    def __call__(
        self, parser: Any, namespace: Namespace, values: Any, option_string: str | None = None
    ) -> None:
        """Remember that it was given."""
        noted = getattr(namespace, _NOTED, {})
        setattr(namespace, _NOTED, {**noted, option_string: self._verdict.text})


class RefusedFlag(Judged):
    """Tells what to do instead, unless the value asks for nothing."""

    def __call__(
        self, parser: Any, namespace: Namespace, values: Any, option_string: str | None = None
    ) -> None:
        """Raise for what cannot be given."""
        flag = option_string or self.option_strings[0]
        self.check(parser, flag, values if isinstance(values, list) else [values])

    def check(self, parser: Parser, flag: str, texts: Sequence[str]) -> None:
        """Raise unless these texts, or the switch turned off, ask for nothing."""
        if flag.startswith("--no-") or (texts and set(texts) <= set(self._verdict.harmless)):
            return
        raise ConfigError(
            f"{parser.prog} takes no option {flag!r}; here: {as_flags(self._verdict.text)}"
        )
