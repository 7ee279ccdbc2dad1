"""Argument parsing whose errors are one line that names near matches."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, NoReturn

from octavo.errors import ConfigError
from octavo.vllm_names import as_flags, here
from octavo_registry import Option
from octavo_registry.naming import close_or_known, meant

PLUGIN_OPTION = "--plugin."


class Several(argparse.Action):
    """Collects texts: a flag may be given several times, and its type may give several texts.

    One value belongs to a flag, as the next may be an argument that is no option; where nothing
    else takes what follows, the flag does.
    """

    is_several = True

    def __call__(
        self, parser: Any, namespace: Any, values: Any, option_string: str | None = None
    ) -> None:
        """Add what was given."""
        texts = chain.from_iterable(values if self.nargs else [values])
        setattr(namespace, self.dest, [*getattr(namespace, self.dest, []), *texts])


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises ConfigError and takes no abbreviated options."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse all, arguments between options too; what is left over is a ConfigError."""
        has_subcommands = any(action.nargs == argparse.PARSER for action in self._actions)
        parse = self.parse_known_args if has_subcommands else self.parse_known_intermixed_args
        parsed, unknown = parse(args, namespace)
        if not unknown:
            return parsed
        option = next((each for each in unknown if each.startswith("-")), None)
        if option is not None:
            name = option.partition("=")[0]
            hint = self.hint(name, self.option_names())
            raise ConfigError(f"{self.prog} takes no option {name!r}; {hint}")
        several = self._take_several()
        try:
            whole, left = parse(args, namespace)
        except ConfigError as error:
            hint = "arguments stand before flags of several values"
            raise ConfigError(f"{error}; {hint}") from error
        before, after = (
            {name: value for name, value in vars(each).items() if name not in several}
            for each in (parsed, whole)
        )
        if left or before != after:  # a word too many must not make a key of what was the model
            raise ConfigError(f"{self.prog} takes no argument {unknown[0]!r}")
        return whole

    def hint(self, name: str, known: Iterable[str]) -> str:
        """What a name that is not known may mean: those near it, or where all are."""
        there = here(name.lstrip("-").replace("-", "_"))
        if there is not None:
            return f"here: {as_flags(there)}"
        close = meant(name, known)
        return f"close: {close}" if close else f"{self.prog} --help lists all"

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing usage and exiting."""
        raise ConfigError(f"{self.prog}: {message}; see {self.prog} --help")

    def subcommand(self, args: Sequence[str]) -> list[str]:
        """The word that names one of this parser's, if there are any and the first does."""
        return [word for word in args[:1] if word in self._subcommands()]

    def chosen(self, words: Sequence[str]) -> Parser:
        """The parser that such words name; this one without any."""
        return self._subcommands()[words[0]] if words else self

    def flags(self) -> dict[str, argparse.Action]:
        """Return what this parser itself takes, by each name of it."""
        return self._option_string_actions

    def takes_argument(self, name: str, flag: str) -> bool:
        """Whether this is the name of an argument, and the flag means nothing else."""
        names = [action.dest for action in self._actions if not action.option_strings]
        return name in names and flag not in self._option_string_actions

    def offer(self, name: str, value: str) -> bool:
        """Let an argument that is no option be left out, as it is known; False if there is none."""
        positional = [action for action in self._actions if not action.option_strings]
        if name not in [action.dest for action in positional]:
            return False
        if len(positional) > 1:
            others = " ".join(str(a.metavar) for a in positional if a.dest != name)
            raise ConfigError(f"{self.prog}: {name} goes before {others}, not into a file")
        positional[0].nargs = argparse.OPTIONAL
        positional[0].default = value
        positional[0].required = False
        return True

    def option_names(self) -> list[str]:
        """Return all option strings that ``--help`` shows, those of subcommands included."""
        flags = self._option_string_actions.items()
        names = [name for name, action in flags if action.help != argparse.SUPPRESS]
        for parser in self._subcommands().values():
            names.extend(parser.option_names())
        return names

    def _subcommands(self) -> dict[str, Parser]:
        found = [a.choices for a in self._actions if isinstance(a, argparse._SubParsersAction)]
        return {name: parser for parsers in found for name, parser in parsers.items()}

    def _take_several(self) -> set[str]:
        """From now on a flag of several values takes all that stand behind it; return these."""
        several = [a for a in self._actions if isinstance(a, Several) and a.is_several]
        for action in several:
            action.nargs = argparse.ONE_OR_MORE
        within = (parser._take_several() for parser in self._subcommands().values())
        return {action.dest for action in several}.union(*within)

    def _get_nargs_pattern(self, action: argparse.Action) -> str:
        # What options are looked for among takes nothing yet: Python 3.11 gives it the "--".
        return "()" if action.nargs == argparse.SUPPRESS else super()._get_nargs_pattern(action)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            what = action.metavar or action.dest
            raise ConfigError(
                f"{self.prog} has no {what} {value!r}; {close_or_known(value, known)}"
            )


def add_common_options(parser: Parser, declared: Iterable[Option] = ()) -> None:
    """Add what every command takes, and the options that plugins declared."""
    group = parser.add_argument_group("common options")
    group.add_argument(
        "--plugin", action="append", default=[], metavar="MODULE", help="load one more plugin"
    )
    group.add_argument(
        "--disable-plugin", action="append", default=[], metavar="NAME", help="leave a plugin out"
    )
    group.add_argument(
        "--config", metavar="FILE", help="options in a YAML file; flags that are given win"
    )
    group.add_argument("--debug", action="store_true", help="show the traceback of an error")
    options = list(declared)
    if options:
        group = parser.add_argument_group("plugin options")
    for option in options:
        group.add_argument(
            f"{PLUGIN_OPTION}{option.plugin}.{option.key}",
            metavar=option.type.__name__.upper(),
            help=f"{option.help} (default: {option.default})".replace("%", "%%"),
        )


def take_plugin_options(args: Sequence[str]) -> tuple[dict[str, dict[str, str]], list[str]]:
    """Split ``--plugin.NAME.KEY VALUE`` and ``--plugin.NAME.KEY=VALUE`` off the other arguments."""
    options: dict[str, dict[str, str]] = {}
    rest: list[str] = []
    remaining = iter(args)
    for arg in remaining:
        if arg == "--":
            rest += [arg, *remaining]
            break
        if not arg.startswith(PLUGIN_OPTION):
            rest.append(arg)
            continue
        name, equals, value = arg.partition("=")
        plugin, _, key = name.removeprefix(PLUGIN_OPTION).rpartition(".")
        if not plugin:
            raise ConfigError(f"{name!r} must have the form --plugin.NAME.KEY")
        given = value if equals else next(remaining, None)
        if given is None:
            raise ConfigError(f"{name} needs a value")
        options.setdefault(plugin, {})[key] = given
    return options, rest
