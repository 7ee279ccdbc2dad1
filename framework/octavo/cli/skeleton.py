"""Writes the skeleton of a plugin package from the templates beside this file."""

from __future__ import annotations

import re
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template

from octavo.errors import ConfigError
from octavo.version import __version__
from octavo_registry import API_VERSION

KINDS = (
    "adapter",
    "attention",
    "command",
    "executor",
    "guided",
    "input_processor",
    "logits_processor",
    "modality",
    "model",
    "quantization",
    "reasoning_parser",
    "route",
    "source",
    "tokenizer",
    "tool_parser",
)
"""Each is a folder of templates; "package" holds what all kinds have."""

_NAME = re.compile(r"[a-z][a-z0-9_]*")


def write_skeleton(kind: str, name: str, folder: Path) -> None:
    """Write a package that registers one ``kind`` called ``name``, and a test that proves it."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"plugin name {name!r} must be lower-case letters, digits and _")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists already; give another folder with --dir")
    values = {
        "name": name,
        "package": f"octavo_{name}",
        "class_name": "".join(part.capitalize() for part in name.split("_")),
        "octavo_version": __version__,
        "api": API_VERSION.partition(".")[0],
    }
    templates = files("octavo.cli") / "templates"
    _render(templates / "package", folder, values)
    _render(templates / kind, folder / values["package"], values)


def _render(source: Traversable, folder: Path, values: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for template in sorted(source.iterdir(), key=lambda entry: entry.name):
        name = Template(template.name.removesuffix(".tmpl")).substitute(values)
        if template.is_dir():
            _render(template, folder / name, values)
        else:
            text = Template(template.read_text(encoding="utf-8")).substitute(values)
            (folder / name).write_text(text, encoding="utf-8")
