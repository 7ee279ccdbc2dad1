"""``EngineArgs``: the options of ``LLM``, no more and no fewer."""

from __future__ import annotations

import copy
import pickle
from argparse import ArgumentParser
from dataclasses import asdict, fields

import pytest
from octavo.utils import FlexibleArgumentParser

from octavo import AsyncEngineArgs, EngineArgs
from octavo.cli.parser import Parser
from octavo.errors import ConfigError
from octavo.frontend.options import read_options


def test_its_fields_are_the_options_with_their_defaults() -> None:
    args = EngineArgs("octavo/tiny")
    assert read_options(asdict(args), caller="LLM") == read_options(
        {"model": "octavo/tiny"}, caller="LLM"
    )
    for name in ("model", "max_num_seqs", "enable_lora", "logits_processors", "plugins"):
        assert name in [field.name for field in fields(EngineArgs)]  # type: ignore[arg-type]


def test_what_is_given_or_changed_reaches_the_config() -> None:
    args = AsyncEngineArgs(model="m", max_model_len=64, plugins=["a.plugin"])
    args.block_size = 8
    options = read_options(args.options(), caller="LLM")
    assert options.config.model.max_model_len == 64
    assert options.config.cache.block_size == 8
    assert options.plugins == ("a.plugin",)
    assert pickle.loads(pickle.dumps(args)) == copy.deepcopy(args) == args
    assert repr(args).startswith("AsyncEngineArgs(")


@pytest.mark.parametrize("kind", [EngineArgs, AsyncEngineArgs])
def test_an_unknown_name_is_refused_with_what_is_near(kind: type[EngineArgs]) -> None:
    with pytest.raises(TypeError, match=r"EngineArgs\(\) got .*'max_num_seq'; close: max_num_seqs"):
        kind(model="m", max_num_seq=3)
    with pytest.raises(TypeError, match="'swap_space', vLLM's; here: swap_gib"):
        kind(model="m", swap_space=4)


@pytest.mark.parametrize("parser", [ArgumentParser(), Parser(), FlexibleArgumentParser()])
def test_a_command_line_gives_them(parser: ArgumentParser) -> None:
    assert EngineArgs.add_cli_args(parser) is parser
    parser.add_argument("--questions", type=int)
    line = "--model m --max-model-len auto --no-enable-prefix-caching --questions 3"
    more = "--logits-processors a --logits-processors b --plugin p"
    args = EngineArgs.from_cli_args(parser.parse_args(f"{line} {more}".split()))
    assert args == EngineArgs(
        "m",
        max_model_len="auto",
        enable_prefix_caching=False,
        logits_processors=["a", "b"],
        plugins=["p"],
    )


def test_a_script_takes_options_in_vllms_spellings(capsys: pytest.CaptureFixture[str]) -> None:
    parser = FlexibleArgumentParser(description="a program")
    EngineArgs.add_cli_args(parser)
    parser.add_argument("--num_questions", type=int)
    line = "--model m --max_model_len=2k -tp 1 --num_questions 3 --hf-overrides.a.b 1"
    given = parser.parse_args(line.split())
    assert given.num_questions == 3
    assert EngineArgs.from_cli_args(given) == EngineArgs(
        "m", max_model_len=2000, tensor_parallel_size=1, hf_overrides={"a": {"b": 1}}
    )
    with pytest.raises(SystemExit) as end:
        parser.parse_args(["--max-model-le", "3"])
    assert end.value.code == 2
    assert "takes no option '--max-model-le'; close: ['--max-model-len'" in capsys.readouterr().err


def test_a_script_may_have_a_model_of_its_own() -> None:
    parser = EngineArgs.add_cli_args(ArgumentParser())
    with pytest.raises(ConfigError, match="give --model"):
        EngineArgs.from_cli_args(parser.parse_args([]))
    parser.set_defaults(model="octavo/tiny", max_model_len=64)
    assert EngineArgs.from_cli_args(parser.parse_args([])) == EngineArgs(
        "octavo/tiny", max_model_len=64
    )
