"""``--config FILE.yaml``: options in a file, under the names of the flags."""

from __future__ import annotations

import json
from argparse import Action, ArgumentTypeError
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from octavo.cli.parser import PLUGIN_OPTION, Parser, Several
from octavo.cli.vllm_flags import RefusedFlag
from octavo.errors import ConfigError

FLAG = "--config"
MODEL = "model"
"""The argument that is no flag, and that a file may give all the same."""
_EARLY = ("disable_plugin", "plugin")
_PLUGIN_KEY = PLUGIN_OPTION.removeprefix("--")
_BOOL, _NULL = "tag:yaml.org,2002:bool", "tag:yaml.org,2002:null"


class ConfigFile:
    """The options of one file, as text: what stands there is read as the flag would read it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._nodes: dict[str, yaml.Node] = {}
        self._lines: dict[str, int] = {}
        """Where each stands, from 1."""
        root = self._read()
        if not isinstance(root, yaml.MappingNode):
            raise ConfigError(f"--config {path}: the file must be a mapping, such as port: 8000")
        for key, node in root.value:
            name = str(key.value) if isinstance(key, yaml.ScalarNode) else "a list or mapping"
            if not name.startswith(_PLUGIN_KEY):
                name = name.replace("-", "_")
            before = self._lines.get(name)
            self._lines[name] = key.start_mark.line + 1
            if before is not None:
                raise self._wrong(name, f"{name} is given twice, first in line {before}")
            if name == FLAG.removeprefix("--"):
                raise self._wrong(name, "a file of options cannot name another one")
            self._nodes[name] = node

    def _read(self) -> yaml.Node | None:
        try:
            return yaml.compose(Path(self._path).read_text(encoding="utf-8"), yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = f":{mark.line + 1}" if mark else ""
            said = ": ".join(filter(None, (error.context, error.problem)))
            raise ConfigError(f"--config {self._path}{line}: this is no YAML: {said}") from error
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise ConfigError(f"--config {self._path}: {' '.join(str(error).split())}") from error

    def plugin_args(self, given: Sequence[str]) -> list[str]:
        """Arguments about plugins, which are loaded before a command's own flags are known."""
        names = [n for n in self._nodes if n.startswith(_PLUGIN_KEY)]
        args = [f"--{name}={self._text(name, self._nodes.pop(name))}" for name in names]
        for name in _EARLY:
            if name in self._nodes:
                args += [f"{_flag(name)}={text}" for text in self._texts(name)]
                del self._nodes[name]
        return [arg for arg in args if not _is_given(arg.partition("=")[0], given)]

    def args(self, parser: Parser, given: Sequence[str]) -> list[str]:
        """The other arguments, but those that are also given; raises for what is no option."""
        actions = {
            flag[2:].replace("-", "_"): action
            for flag, action in parser.flags().items()
            if action.dest != "help" and flag.startswith("--")
        }
        args = []
        for name, node in self._nodes.items():
            if name == MODEL and parser.offer(MODEL, self._text(MODEL, node)):
                continue
            if name not in actions:
                hint = parser.hint(name, (*actions, *_EARLY, MODEL))
                raise self._wrong(name, f"{parser.prog} has no option {name!r}; {hint}")
            action = actions[name]
            if not any(_is_given(flag, given) for flag in action.option_strings):
                args += self._as_flags(action, name, node, parser)
        return args

    def _as_flags(self, action: Action, name: str, node: yaml.Node, parser: Parser) -> list[str]:
        flag = _flag(name)
        if action.nargs == 0:
            if node.tag != _BOOL:
                raise self._wrong(name, f"{name} must be true or false")
            if not yaml.safe_load(node.value):
                negative = f"--no-{flag[2:]}"
                return [negative] if negative in action.option_strings else []
            self._check(action, name, [], parser)
            return [flag]
        if isinstance(node, yaml.SequenceNode) and not isinstance(action, Several):
            raise self._wrong(name, f"{name} takes one value, not a list")
        items = node.value if isinstance(node, yaml.SequenceNode) else [node]
        texts = [
            self._json(i) if isinstance(i, yaml.MappingNode) else self._text(name, i) for i in items
        ]
        self._check(action, name, texts, parser)
        return [f"{flag}={self._checked(action, name, text)}" for text in texts]

    def _check(self, action: Action, name: str, texts: list[str], parser: Parser) -> None:
        """Raise where the file stands: a flag's own error would not say it."""
        try:
            if isinstance(action, RefusedFlag):
                action.check(parser, _flag(name), texts)
        except ConfigError as error:
            raise self._wrong(name, str(error)) from error

    def _json(self, node: yaml.Node) -> str:
        return json.dumps(yaml.safe_load(yaml.serialize(node)))

    def _checked(self, action: Action, name: str, text: str) -> str:
        """The text, if the flag takes it: its own error would not say where it stands."""
        try:
            if callable(action.type):
                action.type(text)
        except ArgumentTypeError as error:
            raise self._wrong(name, f"{name}: {error}") from error
        except (TypeError, ValueError) as error:
            wanted = getattr(action.type, "__name__", "value")
            raise self._wrong(name, f"{name}: {text!r} is no {wanted}") from error
        return text

    def _texts(self, name: str) -> Iterator[str]:
        node = self._nodes[name]
        for item in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            yield self._text(name, item)

    def _text(self, name: str, node: yaml.Node) -> str:
        if not isinstance(node, yaml.ScalarNode) or node.tag == _NULL:
            raise self._wrong(name, f"{name} needs a value; leave it out for the default")
        return str(node.value)

    def _wrong(self, name: str, what: str) -> ConfigError:
        return ConfigError(f"--config {self._path}:{self._lines[name]}: {what}")


def take_config(args: Sequence[str]) -> tuple[ConfigFile | None, list[str]]:
    """Split ``--config FILE`` off the other arguments."""
    rest: list[str] = []
    found = None
    remaining = iter(args)
    for arg in remaining:
        if arg == "--":
            rest += [arg, *remaining]
            break
        name, equals, value = arg.partition("=")
        if name != FLAG:
            rest.append(arg)
            continue
        if found is not None:
            raise ConfigError("--config is given twice; one file holds all")
        path = value if equals else next(remaining, None)
        if not path:
            raise ConfigError("--config needs a file")
        found = ConfigFile(path)
    return found, rest


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _is_given(flag: str, args: Sequence[str]) -> bool:
    negative = f"--no-{flag[2:]}"
    return any(arg.partition("=")[0] in (flag, negative) for arg in args)
