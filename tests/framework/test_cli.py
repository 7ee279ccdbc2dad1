from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys

import pytest

from octavo.cli import main
from octavo.errors import PluginError

COMMAND = """
import sys

@hookimpl
def register_commands(commands):
    commands.add("greet", "greeter:Greet", help="say hello")

@hookimpl
def register_options(options):
    options.add("loud", bool, False, "whether to shout, 100%")

class Greet:
    def configure(self, parser):
        parser.add_argument("--name", default="you")
        parser.add_argument("--fail", action="store_true")

    def run(self, args, host):
        if args.fail:
            raise RuntimeError("first line\\nsecond line")
        text = f"hello {args.name}"
        sys.stdout.write(text.upper() if host.option("greeter", "loud") else text)
        return 3
"""


def error_line(capsys) -> str:
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err.rstrip("\n")


def test_help_lists_commands_and_options_of_plugins(site, capsys) -> None:
    site.install("greeter", COMMAND)
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert "greet      say hello" in text
    assert "plugin     list, create and test plugins" in text
    assert "--plugin.greeter.loud BOOL" in text
    assert "whether to shout, 100% (default: False)" in text
    assert main([]) == 0
    assert capsys.readouterr().out == text


def test_a_plugins_command_runs_and_gives_the_exit_code(site, capsys) -> None:
    site.install("greeter", COMMAND)
    assert main(["greet", "--name", "Ann"]) == 3
    assert capsys.readouterr().out == "hello Ann"


@pytest.mark.parametrize(
    "arguments",
    [
        ["greet", "--plugin", "greeter", "--plugin.greeter.loud", "true"],
        ["--plugin=greeter", "--plugin.greeter.loud=true", "greet"],
    ],
)
def test_common_options_may_stand_before_or_after_the_command(site, capsys, arguments) -> None:
    site.write("greeter", COMMAND)
    assert main(arguments) == 3
    assert capsys.readouterr().out == "HELLO YOU"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plugn"], "no command named 'plugn'; close: ['plugin']"),
        (["--plugn", "x"], "octavo takes no option '--plugn'; close: ['--plugin']"),
        (["plugin", "lst"], "octavo plugin has no ACTION 'lst'; close: ['list']"),
        (["plugin", "list", "--jsn"], "octavo plugin takes no option '--jsn'; close: ['--json']"),
        (["plugin", "list", "more"], "octavo plugin takes no argument 'more'"),
        (["plugin", "new", "modell", "x"], "octavo plugin new has no KIND 'modell'; close: ['mo"),
        (["plugin", "new", "model"], "octavo plugin new: the following arguments are required"),
        (["plugin", "new", "model", "No-Good"], "plugin name 'No-Good' must be lower-case"),
        (["plugin", "test", "nothing"], "no plugin named 'nothing' is loaded; there are none"),
        (["version", "--disable-plugin", "x"], "no plugin named 'x' to disable; there are none"),
        (["version", "--plugin.x"], "'--plugin.x' must have the form --plugin.NAME.KEY"),
        (["version", "--plugin.x.y"], "--plugin.x.y needs a value"),
        (["version", "--plugin.x.y", "1"], "no plugin with options is named 'x'; there are none"),
    ],
)
def test_a_usage_error_is_one_line_and_exit_code_2(site, capsys, arguments, message) -> None:
    assert main(arguments) == 2
    assert error_line(capsys).startswith(f"octavo: error: {message}")


def test_a_broken_plugin_is_one_line_and_can_be_disabled(site, capsys) -> None:
    site.install("broken", "1 / 0")
    assert main(["plugin", "list"]) == 1
    assert "plugin 'broken' cannot be imported" in error_line(capsys)
    assert main(["plugin", "list", "--disable-plugin", "broken"]) == 0


def test_an_unforeseen_error_is_one_line_unless_debugging(site, capsys) -> None:
    site.install("greeter", COMMAND)
    assert main(["greet", "--fail"]) == 1
    assert error_line(capsys) == (
        "octavo: error: plugin 'greeter' failed in command 'greet': "
        "RuntimeError: first line second line"
    )
    with pytest.raises(PluginError) as failed:
        main(["greet", "--fail", "--debug"])
    assert isinstance(failed.value.__cause__, RuntimeError)


def test_a_command_of_a_plugin_does_not_hide_a_built_in_one(site, capsys) -> None:
    site.install("greeter", COMMAND.replace('"greet"', '"version"'))
    assert main(["version"]) == 1
    assert "command 'version' is 'greeter:Greet' of plugin 'greeter'" in error_line(capsys)


def test_what_follows_two_dashes_is_no_option(site, capsys) -> None:
    site.install("greeter", COMMAND.replace('"--name", default="you"', '"name", nargs="+"'))
    words = ["--plugin", "--plugin.greeter.loud", "--config", "--debug", "--fail"]
    assert main(["greet", "--plugin.greeter.loud", "false", "--", *words]) == 3
    assert capsys.readouterr().out == f"hello {words}"


def test_help_and_version_are_found_by_their_usual_names(site, capsys) -> None:
    for usual, own in (("help", "--help"), ("--version", "version")):
        assert main([usual]) == 0
        shown = capsys.readouterr().out
        assert main([own]) == 0
        assert capsys.readouterr().out == shown


def test_version_names_the_plugin_api(site, capsys) -> None:
    assert main(["version"]) == 0
    assert capsys.readouterr().out.startswith("octavo 0.1.0 (plugin API 1.0, Python 3.")
    assert main(["version", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["plugin_api"] == "1.0"


def test_plugin_list_shows_origin_and_registrations(site, capsys) -> None:
    site.install("greeter", COMMAND, version="4.2")
    site.write("loose")
    assert main(["plugin", "list", "--plugin", "loose"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["NAME", "VERSION", "DISTRIBUTION", "REGISTERS"],
        ["greeter", "4.2", "dist-greeter", "command:", "greet;", "option:", "loud"],
        ["loose", "-", "(module", "loose)", "-"],
    ]
    assert main(["plugin", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {
            "name": "greeter",
            "version": "4.2",
            "distribution": "dist-greeter",
            "module": "greeter",
            "registers": {"command": ["greet"], "option": ["loud"]},
        }
    ]
    assert "loose" in sys.modules


def test_a_reader_that_ends_early_causes_no_traceback() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    code = "import sys; from octavo.cli import main; sys.exit(main(['--help']))"
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=writer, stderr=subprocess.PIPE, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_a_closed_standard_stream_is_an_empty_one(closed) -> None:
    code = "import sys; from octavo.cli import main; sys.exit(main(['version']))"
    command = f"{shlex.join([sys.executable, '-c', code])} {closed}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("octavo ") == (closed != ">&-")


def test_a_character_that_the_output_cannot_show_is_escaped(site) -> None:
    code = "import sys; from octavo.cli import main; sys.exit(main(['greet', '--name', 'Zoë']))"
    site.install("greeter", COMMAND)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(site.root), "PYTHONIOENCODING": "ascii"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (3, r"hello Zo\xeb", "")


def test_the_package_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "octavo", "generat"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "octavo: error: no command named 'generat'; close: ['generate']\n"
