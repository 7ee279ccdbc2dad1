"""Command-line flags from the fields of dataclasses: names, types, choices and help alike."""

from __future__ import annotations

import ast
import inspect
import json
import sys
from argparse import (
    SUPPRESS,
    Action,
    ArgumentParser,
    ArgumentTypeError,
    BooleanOptionalAction,
    Namespace,
)
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import MISSING, Field, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from octavo.cli.numbers import whole_number
from octavo.cli.parser import Several
from octavo.vllm_names import VALUES


def add_fields(
    parser: ArgumentParser,
    kind: type,
    *,
    title: str | None = None,
    only: Iterable[str] | None = None,
    without: Iterable[str] = (),
) -> None:
    """Add ``--field-name`` for each field; what the user does not give stays out of the namespace.

    A field's type must be made of bool, int, float, str, Literal, dict and tuple[str, ...].
    """
    group = parser.add_argument_group(title) if title else parser
    hints, docs = get_type_hints(kind), _docs(kind)
    wanted = [f.name for f in fields(kind)] if only is None else list(only)
    for field in fields(kind):
        if field.name not in wanted or field.name in without:
            continue
        flag = f"--{field.name.replace('_', '-')}"
        text = _help(field, docs.get(field.name, "")).replace("%", "%%")
        members = _members(hints[field.name])
        if members == [bool]:
            group.add_argument(
                flag, dest=field.name, action=BooleanOptionalAction, default=SUPPRESS, help=text
            )
            continue
        is_list = any(get_origin(member) is tuple for member in members)
        one: str | type[Action] = "store"
        if all(get_origin(member) is dict for member in members):
            one = Merged
        group.add_argument(
            flag,
            dest=field.name,
            type=_texts if is_list else _reader(members, VALUES.get(field.name, {})),
            action=Several if is_list else one,
            default=SUPPRESS,
            metavar="TEXT ..." if is_list else _metavar(members),
            help=text,
        )


class Merged(Action):
    """Collects the entries of JSON objects: a flag may be given several times."""

    def __call__(
        self, parser: Any, namespace: Namespace, values: Any, option_string: str | None = None
    ) -> None:
        """Add what was given; the last value of an entry counts."""
        setattr(namespace, self.dest, _merged(getattr(namespace, self.dest, {}), values))


def _merged(before: dict[str, Any], added: dict[str, Any]) -> dict[str, Any]:
    made = {**before, **added}
    for key, value in added.items():
        if isinstance(value, dict) and isinstance(before.get(key), dict):
            made[key] = _merged(before[key], value)
    return made


def given_fields(args: Namespace, kind: type) -> dict[str, Any]:
    """The fields that the user gave, by name."""
    return {f.name: getattr(args, f.name) for f in fields(kind) if hasattr(args, f.name)}


def _texts(text: str) -> list[str]:
    """A value of a list's flag: itself, or the members of a JSON list, which are texts or objects.

    An empty list is a text, as what was given must not count as nothing.
    """
    if text.startswith("["):
        with suppress(ValueError, RecursionError):
            members = json.loads(text)
            if members and all(isinstance(each, (str, dict)) for each in members):
                return [each if isinstance(each, str) else json.dumps(each) for each in members]
    return [text]


def _members(hint: Any) -> list[Any]:
    """A union's types but None."""
    if get_origin(hint) in (Union, UnionType):
        return [member for member in get_args(hint) if member is not NoneType]
    return [hint]


def _choices(members: list[Any]) -> list[str]:
    return [str(v) for m in members if get_origin(m) is Literal for v in get_args(m)]


def _metavar(members: list[Any]) -> str:
    words = {int: "N", float: "X", str: "TEXT"}
    names = [words.get(get_origin(m) or m, "JSON") for m in members if get_origin(m) is not Literal]
    return "|".join(dict.fromkeys((*names, *_choices(members))))


def _in_words(members: list[Any]) -> str:
    words = {int: "a whole number", float: "a number", str: "text"}
    names = [words.get(m, "a JSON object") for m in members if get_origin(m) is not Literal]
    return " or ".join(dict.fromkeys((*names, *_choices(members))))


def _reader(members: list[Any], others: Mapping[object, str]) -> Callable[[str], Any]:
    """Reads a value as the first type that takes it; ``others`` are other words for values."""
    choices = _choices(members)

    def read(text: str) -> Any:
        text = others.get(text, text)
        if text in choices:
            return text
        for member in members:
            try:
                if member in (int, float, str):
                    return whole_number(text) if member is int else member(text)
                if get_origin(member) is dict and isinstance(value := json.loads(text), dict):
                    return value
            except (ValueError, RecursionError):
                continue
        raise ArgumentTypeError(f"{text!r} must be {_in_words(members)}")

    return read


def _help(field: Field[Any], doc: str) -> str:
    default = field.default if field.default is not MISSING else None
    shown = "" if default in (None, ()) else f" (default: {default})"
    return f"{' '.join(doc.split())}{shown}".strip() or " "


@cache
def _docs(kind: type) -> dict[str, str]:
    """The string below each field in the class's source; Python itself keeps none of them."""
    tree = ast.parse(inspect.getsource(sys.modules[kind.__module__]))
    docs = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == kind.__name__:
            for field, below in zip(node.body, node.body[1:], strict=False):
                match field, below:
                    case (
                        ast.AnnAssign(target=ast.Name(id=name)),
                        ast.Expr(value=ast.Constant(value=str(doc))),
                    ):
                        docs[name] = doc
    return docs
