"""``--config FILE.yaml``: options in a file."""

from __future__ import annotations

import pytest

from octavo.cli import main
from octavo.cli.config_file import take_config
from octavo.cli.parser import Parser, add_common_options
from octavo.cli.serve import ServeCommand
from octavo.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("seed: 1\nprot: 1", ":2: octavo serve has no option 'prot'; close: ['port'"),
        ("zzzz: 1", ":1: octavo serve has no option 'zzzz'; octavo serve --help lists all"),
        ("port: 1\nhost: x\nport: 2", ":3: port is given twice, first in line 1"),
        ("port: 1\nconfig: b.yaml", ":2: a file of options cannot name another one"),
        ("seed: 1\nhost:", ":2: host needs a value"),
        ("log_requests: 3", ":1: log_requests must be true or false"),
        ("port: [1, 2]", ":1: port takes one value, not a list"),
        ("port: many", ":1: port: 'many' must be a whole number"),
        ("port: {a: 1}", """:1: port: '{"a": 1}' must be a whole number"""),
        ("hf_overrides: 3", ":1: hf_overrides: '3' must be a JSON object"),
        ("- port", ": the file must be a mapping, such as port: 8000"),
        ("[a, b]: 1", ":1: octavo serve has no option 'a list or mapping'"),
        ("seed: 1\na: [", ":2: this is no YAML: while parsing a flow node: expected"),
        ("a: 1\n\tb: 2", ":2: this is no YAML: while scanning"),
    ],
)
def test_a_wrong_file_is_an_error_that_names_file_line_and_what_is_allowed(
    tmp_path, capsys, text, said
) -> None:
    file = tmp_path / "octavo.yaml"
    file.write_text(text)
    assert main(["serve", "octavo/tiny", "--config", str(file)]) == 2
    out, err = capsys.readouterr()
    assert err.startswith(f"octavo: error: --config {file}{said}")
    assert (out, err.count("\n")) == ("", 1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model: nowhere\nnum_warm: 0", "num_warm=0 and num_cold=0"),
        ("num_wram: 1", "octavo bench startup has no option 'num_wram'; close: ['num_warm'"),
        ("num_warm: x", "num_warm: 'x' must be a whole number"),
    ],
)
def test_a_file_holds_the_options_of_a_subcommand(tmp_path, capsys, text, said) -> None:
    file = tmp_path / "octavo.yaml"
    file.write_text(text)
    assert main(["bench", "startup", "--config", str(file)]) == 2
    assert said in capsys.readouterr().err


def test_a_file_that_is_not_there_or_no_text_is_named(tmp_path, capsys) -> None:
    for name, data in (("none.yaml", None), ("binary.yaml", b"\xff\xfe\x00")):
        if data is not None:
            (tmp_path / name).write_bytes(data)
        assert main(["serve", "octavo/tiny", "--config", str(tmp_path / name)]) == 2
        assert str(tmp_path / name) in capsys.readouterr().err


def test_flags_win_over_the_file_and_a_model_given_over_the_files(tmp_path) -> None:
    file = tmp_path / "octavo.yaml"
    file.write_text(
        "model: octavo/tiny\nport: 1\napi-key: [a, '012']\nlog_requests: true\naccess_log: false\n"
        "plugin: [x.y]\nplugin.some.key: 3\nhf_overrides: {a: [1, true]}\n"
        "lora_modules: [a=x, {name: b, path: y}]\n"
    )

    def parsed(*args: str):
        found, rest = take_config(["--config", str(file), *args])
        assert found is not None
        early = found.plugin_args(rest)
        parser = Parser(prog="octavo serve")
        ServeCommand().configure(parser)
        add_common_options(parser)
        return early, parser.parse_args([*found.args(parser, rest), *rest])

    early, args = parsed()
    assert early == ["--plugin.some.key=3", "--plugin=x.y"]
    assert (args.model, args.port, args.api_key) == ("octavo/tiny", 1, ["a", "012"])
    assert (args.log_requests, args.access_log) == (True, False)
    assert args.hf_overrides == {"a": [1, True]}
    assert args.lora_modules == ["a=x", '{"name": "b", "path": "y"}']
    early, args = parsed("other", "--port=2", "--api-key", "c", "--access-log", "--no-log-requests")
    assert (args.model, args.port, args.api_key) == ("other", 2, ["c"])
    assert (args.log_requests, args.access_log) == (False, True)
    with pytest.raises(ConfigError, match="given twice"):
        take_config(["--config", str(file), f"--config={file}"])
