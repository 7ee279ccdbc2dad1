from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, get_type_hints

import pytest

from octavo.cli.config_file import ConfigFile
from octavo.cli.engine_flags import SAMPLING_FLAGS, add_engine_flags, engine_keywords
from octavo.cli.fields import add_fields, given_fields
from octavo.cli.parser import Parser
from octavo.cli.serve import ServeCommand
from octavo.config import EngineConfig
from octavo.config.server import ServerConfig
from octavo.errors import ConfigError
from octavo.frontend.options import read_options
from octavo.params import SamplingParams
from octavo_registry import PluginHost


@dataclass
class Settings:
    num_blocks: int | None = None
    """How many,
    at 100% of use."""
    length: int | Literal["auto"] | None = None
    share: float = 0.9
    mode: Literal["fast", "slow"] = "fast"
    on: bool = True
    overrides: dict[str, Any] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    text: str = "x"


def parse(*arguments: str) -> dict[str, Any]:
    parser = Parser(prog="try")
    add_fields(parser, Settings)
    return given_fields(parser.parse_args(list(arguments)), Settings)


def test_what_is_not_given_is_absent() -> None:
    assert parse() == {}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--num-blocks", "3"], {"num_blocks": 3}),
        (["--length", "auto"], {"length": "auto"}),
        (["--length=7"], {"length": 7}),
        (["--share", "1"], {"share": 1.0}),
        (["--mode", "slow"], {"mode": "slow"}),
        (["--no-on"], {"on": False}),
        (["--overrides", '{"a": [1]}'], {"overrides": {"a": [1]}}),
        (["--names", "a", "--names", "b"], {"names": ["a", "b"]}),
        (["--names", "a", "b", "--no-on"], {"names": ["a", "b"], "on": False}),
        (["--names", "a", "b", "--names", "c"], {"names": ["a", "b", "c"]}),
        (["--names", '["a", "b"]', "c"], {"names": ["a", "b", "c"]}),
        (["--names", '["a", 1]', "--names=["], {"names": ['["a", 1]', "["]}),
        (["--text", "7"], {"text": "7"}),
    ],
)
def test_values_get_the_types_of_their_fields(arguments, expected) -> None:
    assert parse(*arguments) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--num-blocks", "x"], "--num-blocks: 'x' must be a whole number;"),
        (["--length", "long"], "--length: 'long' must be a whole number or auto"),
        (["--mode", "medium"], "--mode: 'medium' must be fast or slow"),
        (["--overrides", "[1]"], r"--overrides: '\[1\]' must be a JSON object"),
        (["--overrides", "[" * 99999], "must be a JSON object"),
    ],
)
def test_a_value_of_another_type_names_those_there_are(arguments, message) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(*arguments)


def lists_of(kind: type) -> Iterator[str]:
    """The fields of several texts of a config, and of those within it."""
    for name, hint in get_type_hints(kind).items():
        if is_dataclass(hint) and isinstance(hint, type):
            yield from lists_of(hint)
        elif hint == tuple[str, ...]:
            yield name


LISTS = [*lists_of(ServerConfig), *lists_of(EngineConfig)]


@pytest.mark.parametrize("name", LISTS)
def test_a_flag_of_several_values_is_repeated_or_followed_by_all(tmp_path: Path, name: str) -> None:
    def parsed(*args: str) -> Any:
        parser = Parser(prog="octavo serve")
        ServeCommand().configure(parser)
        return parser.parse_args([*args])

    flag = f"--{name.replace('_', '-')}"
    (tmp_path / "list").write_text(f"{name}: [a=1, b=2]\nport: 1")
    parser = Parser(prog="octavo serve")
    ServeCommand().configure(parser)
    for args in (
        ["m", flag, "a=1", "b=2", "--port=1"],
        ["m", "--port", "1", flag, "a=1", flag, "b=2"],
        [flag, '["a=1", "b=2"]', "m", "--port", "1"],
        ["m", *ConfigFile(str(tmp_path / "list")).args(parser, [])],
    ):
        made = parsed(*args)
        assert (made.model, made.port, getattr(made, name)) == ("m", 1, ["a=1", "b=2"])
    assert getattr(parsed(flag, "a=1", "m"), name) == ["a=1"]  # as it may be the model
    with pytest.raises(ConfigError, match=r"MODEL.*; arguments stand before flags of several"):
        parsed(flag, "a=1", "b=2", "m")
    with pytest.raises(ConfigError, match="takes no argument 'true'"):  # m is no value of the flag
        parsed(flag, "a=1", "m", "--enforce-eager", "true")
    with pytest.raises(ConfigError, match="takes no option '--bogus'"):
        parsed(flag, "a=1", "m", "--bogus", "b=2")
    assert getattr(parsed("m", flag, "[]"), name) == ["[]"]  # no key would be no lock


def test_all_that_vllm_takes_several_of_is_among_them() -> None:
    assert {
        *("api_key", "served_model_name", "lora_modules", "logits_processors"),
        *("allowed_origins", "allowed_methods", "allowed_headers", "allowed_media_domains"),
    } <= {*LISTS}


def test_a_subcommands_flag_takes_several_values_too() -> None:
    parser = Parser(prog="try")
    below = parser.add_subparsers().add_parser("sub")
    add_fields(below, Settings)
    assert parser.parse_args(["sub", "--names", "a", "b"]).names == ["a", "b"]


def test_help_is_the_text_below_the_field_and_the_default() -> None:
    parser = Parser(prog="try")
    add_fields(parser, Settings)
    text = " ".join(parser.format_help().split())
    assert "--num-blocks N How many, at 100% of use." in text
    assert "--share X (default: 0.9)" in text


def test_every_field_of_the_engines_config_is_a_flag() -> None:
    parser = Parser(prog="try")
    add_engine_flags(parser)
    flags = set(parser.option_names())
    for hint in get_type_hints(EngineConfig).values():
        if is_dataclass(hint):
            wanted = {f"--{f.name.replace('_', '-')}" for f in fields(hint)} - {"--model"}
            assert wanted <= flags


def test_given_flags_become_the_engines_options() -> None:
    parser = Parser(prog="try")
    add_engine_flags(parser)
    arguments = ["m", "--block-size", "8", "--max-num-seqs", "2", "--logits-processors", "p"]
    keywords = engine_keywords(parser.parse_args(arguments), PluginHost())
    config = read_options(keywords, caller="try").config
    assert (config.model.model, config.cache.block_size) == ("m", 8)
    assert (config.scheduler.max_num_seqs, config.logits_processors) == (2, ("p",))


def test_plugins_of_the_command_line_reach_the_engine(site) -> None:
    site.write("loose")
    host = PluginHost.discover(plugins=["loose"])
    parser = Parser(prog="try")
    add_engine_flags(parser)
    assert engine_keywords(parser.parse_args(["m"]), host)["plugins"] == ["loose"]


def test_sampling_flags_are_fields_of_sampling_params() -> None:
    assert set(SAMPLING_FLAGS) <= {f.name for f in fields(SamplingParams)}
