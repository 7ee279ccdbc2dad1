"""Values as models write them into tagged text, JSON or nearly, made JSON text by their type."""

from __future__ import annotations

import json
import math
import re
import sys

from octavo.tools.json_text import encoded

CONTAINERS = frozenset({"array", "object"})

_WORDS = {"True": "true", "False": "false", "None": "null"}
_TOKEN = re.compile(
    r"""(?P<quoted>'(?:[^'\\]++|\\.)*+'|"(?:[^"\\]++|\\.)*+")"""
    r"|(?P<word>\b(?:True|False|None)\b)|(?P<comma>,\s*+(?=[\])}]))|[()]",
    re.DOTALL,
)
_TO_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|U[0-9a-fA-F]{8}|.)|[\"\x00-\x1f]", re.DOTALL)
_PYTHON_ESCAPES = {"'": "'", "a": r"\u0007", "v": r"\u000b", "0": r"\u0000", "\n": ""}


def json_text(text: str, types: frozenset[str]) -> str:
    """Return the JSON text of a value that may have these types; none: its text decides.

    A number, word, array or object stays as it is written. Where a string is allowed, what fits
    no other type is that string, with its white space; where none is, it is one all the same.
    """
    bare = text.strip()
    kind = _kind(bare)
    if kind in types - {"string"} or (kind == "integer" and "number" in types):
        return bare
    if kind == "string" and types and "string" not in types:
        return json_text(json.loads(bare), types)
    converted = _converted(bare, types)
    if converted is not None:
        return converted
    if kind is not None and "string" not in types:
        return bare
    return f'"{encoded(text)}"'


def _converted(bare: str, types: frozenset[str]) -> str | None:
    """Return the JSON text of what is JSON but for its spelling."""
    word = bare.lower()
    if "null" in types and (word == "null" or bare == "None"):
        return "null"
    if "boolean" in types and word in ("true", "false"):
        return word
    if types & CONTAINERS and bare[:1] in ("[", "{", "("):
        as_json = _TOKEN.sub(_json_token, bare)
        return as_json if _kind(as_json) in types else None
    if "string" in types:
        return None  # 007 may be a name
    if "number" in types or "integer" in types:
        return _number(bare)
    return {"1": "true", "0": "false"}.get(bare) if "boolean" in types else None


def _number(bare: str) -> str | None:
    try:
        value = float(bare)
        if not math.isfinite(value):
            return None
        return str(int(bare)) if bare.lstrip("+-").isdigit() else json.dumps(value)
    except ValueError:
        return None


def _json_token(match: re.Match[str]) -> str:
    token = match[0]
    if match["quoted"]:
        return f'"{_TO_ESCAPE.sub(_json_escape, token[1:-1])}"'
    if match["comma"]:
        return ""
    return _WORDS.get(token, "[" if token == "(" else "]")


def _json_escape(match: re.Match[str]) -> str:
    escape = match[1]
    if escape is None:
        return encoded(match[0])
    if len(escape) == 3:
        return rf"\u00{escape[1:]}"
    if len(escape) == 9:
        code = int(escape[1:], 16)
        return encoded(chr(code)) if code <= sys.maxunicode else match[0]
    return _PYTHON_ESCAPES.get(escape, match[0])


_KINDS = {"{": "object", "[": "array", '"': "string", "t": "boolean", "f": "boolean", "n": "null"}


def _kind(text: str) -> str | None:
    """Return the JSON type of a JSON text; None: it is none."""
    try:
        # Digits are not counted: Python refuses to read integers of more than 4300.
        json.loads(text, parse_int=str, parse_constant=_refused)
    except (ValueError, RecursionError):
        return None
    number = "number" if set(text) & set(".eE") else "integer"
    return _KINDS.get(text[0], number)


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")
