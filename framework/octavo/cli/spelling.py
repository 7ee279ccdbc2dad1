"""Other spellings of options: those that vLLM's parser takes besides the plain ones."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

from octavo.cli.numbers import whole_number
from octavo.cli.parser import Parser
from octavo.errors import ConfigError
from octavo.vllm_names import SHORT

_LONG: Final = re.compile(r"--[A-Za-z][\w-]*", re.ASCII)
_KEYS: Final = re.compile(r"[\w-]+(\.[\w-]+)*\+?", re.ASCII)
_LEVEL: Final = re.compile(r"-O=?(\d)")
ARGUMENTS: Final = {
    "--model": "model",
    "--model-name": "model",
    "--input-file": "file",
    "-i": "file",
}
"""Flags of vLLM's for what is the first argument here."""


def with_dashes(args: Sequence[str], known: Collection[str]) -> list[str]:
    """Write the names of options with dashes in the place of underscores.

    What follows a dot, an equals sign or ``--`` stays as it is, and so do names that are not
    ``known`` with dashes.
    """
    made: list[str] = []
    for index, arg in enumerate(args):
        if arg == "--":
            return [*made, *args[index:]]
        found = _LONG.match(arg)
        name = found[0] if found and arg[found.end() : found.end() + 1] in ("", "=", ".") else ""
        dashed = name.replace("_", "-")
        made.append((dashed if dashed in known else name) + arg[len(name) :])
    return made


def spelled(args: Sequence[str], parser: Parser) -> list[str]:
    """Return the arguments in the spelling that the parser knows.

    ``-tp 2`` becomes ``--tensor-parallel-size 2``, ``--hf-overrides.a.b 1`` becomes
    ``--hf-overrides={"a": {"b": 1}}``, and ``--model NAME`` the first argument, if the parser takes
    the model so; likewise ``-i FILE``.
    """
    made: list[str] = []
    remaining = iter(args)
    for arg in remaining:
        if arg == "--":
            return [*made, arg, *remaining]
        head, equals, value = arg.partition("=")
        name, dot, keys = head.partition(".")
        name = _long(name, parser)
        if (level := _LEVEL.fullmatch(arg)) and "-O" not in parser.flags():
            made += ["--optimization-level", level[1]]
        elif dot and name in parser.flags() and _KEYS.fullmatch(keys):
            text = value if equals else _next(remaining, head)
            made.append(f"{name}={json.dumps(_nested(keys, text))}")
        elif not dot and parser.takes_argument(ARGUMENTS.get(_dashed(name), ""), name):
            made.insert(0, value if equals else _next(remaining, name))
        else:
            made.append(name + arg[len(head.partition(".")[0]) :])
    return made


def _long(name: str, parser: Parser) -> str:
    """The name by which the parser knows an option, if it does by another."""
    known = parser.flags()
    if name in known:
        return name
    if name in SHORT:
        return "--" + _dashed(SHORT[name])
    return _dashed(name) if _dashed(name) in known else name


def _dashed(name: str) -> str:
    return name.replace("_", "-") if _LONG.fullmatch(f"--{name.lstrip('-')}") else name


def _next(remaining: Iterator[str], name: str) -> str:
    text = next(remaining, None)
    if text is None:
        raise ConfigError(f"{name} needs a value")
    return text


def _nested(keys: str, text: str) -> Any:
    """The object in which the value stands below these keys; ``+`` after them makes it a list."""
    value: Any = text.split(",") if keys.endswith("+") else _value(text)
    for key in reversed(keys.removesuffix("+").split(".")):
        value = {key: value}
    return value


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return whole_number(text)
    except ValueError:
        return text
