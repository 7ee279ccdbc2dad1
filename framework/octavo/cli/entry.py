"""``octavo``: finds the command that was asked for, and turns errors into one line."""

from __future__ import annotations

import os
import sys
from argparse import Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Any

from octavo.cli.config_file import take_config
from octavo.cli.parser import Parser, add_common_options, take_plugin_options
from octavo.cli.spelling import spelled, with_dashes
from octavo.cli.vllm_flags import tell_noted
from octavo.errors import BadRequestError, ConfigError, OctavoError, UnknownNameError
from octavo.observability.function_trace import trace_functions
from octavo.observability.logs import configure_logging, warn_of_misspelled_variables
from octavo_registry import LazyRegistry, PluginHost
from octavo_registry.commands import Command
from octavo_registry.faults import one_line
from octavo_registry.lazy import FRAMEWORK
from octavo_registry.naming import close_or_known

USER_ERRORS = (BadRequestError, ConfigError, UnknownNameError)
"""Exit code 2; any other error is 1."""
BUILT_IN = {
    "adapter": ("adapter:AdapterCommand", "show, check or merge a LoRA adapter"),
    "bench": ("bench:BenchCommand", "measure a server or an engine"),
    "chat": ("chat:ChatCommand", "talk with a model"),
    "complete": ("complete:CompleteCommand", "continue lines as they are typed"),
    "doctor": ("doctor:DoctorCommand", "check this machine, and say what to do"),
    "generate": ("generate:GenerateCommand", "continue prompts"),
    "plan": ("plan:PlanCommand", "say whether a model fits, before its weights are read"),
    "plugin": ("plugin:PluginCommand", "list, create and test plugins"),
    "run-batch": ("batch.command:RunBatchCommand", "answer a file of OpenAI batch requests"),
    "serve": ("serve:ServeCommand", "answer HTTP requests as OpenAI's API does"),
    "version": ("version:VersionCommand", "show versions"),
}
"""The framework's own commands: module of this package and class, and what ``--help`` says."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; without ``--debug`` no traceback is shown."""
    args = list(sys.argv[1:] if argv is None else argv)
    _open_standard_streams()
    try:
        code = _run(args)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader has ended, as in `octavo ... | head`; at exit Python flushes once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if "--debug" in args:
            raise
        return tell(error)


def tell(error: Exception) -> int:
    """Write an error's line; returns the exit code that it asks for."""
    known = isinstance(error, OctavoError)
    message = (
        " ".join(str(error).split())
        if known
        else f"{one_line(error)}; add --debug for the traceback"
    )
    sys.stderr.write(f"octavo: error: {message}\n")
    return 2 if isinstance(error, USER_ERRORS) else 1


def _open_standard_streams() -> None:
    """What the caller has closed (``>&-``, a daemon) is empty; no later file takes its place."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
    if isinstance(sys.stdout, TextIOWrapper):
        # A character that a locale cannot show must not end a stream.
        sys.stdout.reconfigure(errors="backslashreplace")


def _run(args: list[str]) -> int:
    trace_functions()
    configure_logging()
    warn_of_misspelled_variables()
    common = Parser(prog="octavo", add_help=False)
    add_common_options(common)
    file, args = take_config(with_dashes(args, common.flags()))
    options, args = take_plugin_options([*(file.plugin_args(args) if file else ()), *args])
    chosen, args = common.parse_known_args(args)
    host = PluginHost.discover(
        plugins=chosen.plugin, disabled=chosen.disable_plugin, options=options
    )
    add_built_in_commands(host.commands)
    if not args or args[0] in ("-h", "--help", "help"):
        sys.stdout.write(_top_parser(host).format_help())
        return 0
    name, *rest = args
    name = "version" if name == "--version" else name
    if name.startswith("-"):
        known = (*common.option_names(), "--help")
        raise ConfigError(f"octavo takes no option {name!r}; {close_or_known(name, known)}")
    command = host.commands.make(name)
    parser = Parser(prog=f"octavo {name}", description=host.commands.info(name).metadata["help"])
    command.configure(parser)
    add_common_options(parser, host.options.declared())
    words = parser.subcommand(rest)
    chosen_parser = parser.chosen(words)
    rest = spelled(rest[len(words) :], chosen_parser)
    if file:
        rest = [*file.args(chosen_parser, rest), *rest]
    parsed = parser.parse_args([*words, *rest])
    tell_noted(parsed)
    return _run_command(command, name, parsed, host)


def _run_command(command: Command, name: str, parsed: Namespace, host: PluginHost) -> int:
    """Run a command; what a plugin's raises or returns by mistake names the plugin."""
    plugin = host.commands.info(name).plugin
    if plugin == FRAMEWORK:
        return command.run(parsed, host)
    try:
        code: Any = command.run(parsed, host)
        if type(code) is not int:
            raise TypeError(f"it returned {code!r}, not an exit code")
    except (OctavoError, OSError):
        raise
    except Exception as error:
        raise host.faults.failure(plugin, f"command {name!r}", error) from error
    return code


def add_built_in_commands(commands: LazyRegistry[Command]) -> None:
    """Add the framework's own commands beside those of plugins."""
    for name, (target, text) in BUILT_IN.items():
        commands.add(name, f"octavo.cli.{target}", help=text)


def _top_parser(host: PluginHost) -> Parser:
    names = host.commands.names()
    width = max(len(name) for name in names)
    lines = [f"  {name:<{width}}  {host.commands.info(name).metadata['help']}" for name in names]
    parser = Parser(
        prog="octavo",
        usage="octavo COMMAND [options]",
        description="\n".join(["commands:", *lines]),
        epilog="octavo COMMAND --help shows a command's own options.",
        formatter_class=RawDescriptionHelpFormatter,
    )
    add_common_options(parser, host.options.declared())
    return parser
