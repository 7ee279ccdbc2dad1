"""Commands as vLLM's documents write them."""

from __future__ import annotations

import json
import logging
from argparse import Namespace
from pathlib import Path

import pytest

from octavo.cli import main
from octavo.cli.batch.command import RunBatchCommand
from octavo.cli.config_file import ConfigFile
from octavo.cli.numbers import whole_number
from octavo.cli.parser import Parser, add_common_options
from octavo.cli.serve import ServeCommand
from octavo.cli.spelling import spelled, with_dashes
from octavo.cli.vllm_flags import tell_noted
from octavo.environment import vllm_variables
from octavo.errors import ConfigError
from octavo.frontend.options import read_options


def serve_parser() -> Parser:
    parser = Parser(prog="octavo serve")
    ServeCommand().configure(parser)
    add_common_options(parser)
    return parser


def parsed(*args: str, file: Path | None = None) -> Namespace:
    parser = serve_parser()
    rest = spelled(args, parser)
    if file:
        rest = [*ConfigFile(str(file)).args(parser, rest), *rest]
    return parser.parse_args(rest)


@pytest.mark.parametrize(
    ("args", "field", "value"),
    [
        ("m --max_model_len 8k", "max_model_len", 8000),
        ("m --max_model_len=8K", "max_model_len", 8192),
        ("m --max-num-batched-tokens 1.5k", "max_num_batched_tokens", 1500),
        ("m --max-model-len -1", "max_model_len", "auto"),
        ("m -tp 2", "tensor_parallel_size", 2),
        ("m -tp=2 -pp 3", "pipeline_parallel_size", 3),
        ("m -q awq", "quantization", "awq"),
        ("--model m --port 1", "model", "m"),
        ("--port 1 --api-key a --model=m", "model", "m"),
        ("m --hf-overrides.rope_scaling.factor 2", "hf_overrides", {"rope_scaling": {"factor": 2}}),
        ('m --hf-overrides {"a":1} --hf_overrides.b=x', "hf_overrides", {"a": 1, "b": "x"}),
        ("m --hf-overrides.a+ x,y", "hf_overrides", {"a": ["x", "y"]}),
        ("m --limit-mm-per-prompt.image 2", "limit_mm_per_prompt", {"image": 2}),
        ("m --api-server-count 3", "api_workers", 3),
        ("m -asc 3", "api_workers", 3),
        ("m --kv-cache-memory-bytes 2G", "kv_cache_memory_gib", 2.0),
        ("m --h11-max-incomplete-event-size 65536", "max_header_kib", 64.0),
        ("m --num-gpu-blocks-override 9", "num_blocks", 9),
        ("m --enable-log-requests", "log_requests", True),
        ("m --disable-log-requests", "log_requests", False),
        ("m --no-enable-log-requests", "log_requests", False),
        ("m --disable-uvicorn-access-log", "access_log", False),
        ("m --disable-access-log-for-endpoints /a,/b", "access_log_skip", ["/a", "/b"]),
        ("m --shutdown-timeout 5", "drain_timeout_seconds", 5.0),
        ("m --generation-config vllm", "generation_config", "none"),
        ("m --load-format safetensors", "load_format", "auto"),
        ("m --dtype half", "dtype", "float16"),
        ('m --lora-modules [{"name":"a"}]', "lora_modules", ['{"name": "a"}']),
        ("m --data-parallel-size 1 --no-enable-eplb --seed 7", "seed", 7),
        ("m -O3 --seed 7", "seed", 7),
        ("m -O 3 -O.mode=2 -cc.mode 3 --seed 7", "seed", 7),
    ],
)  # fmt: skip
def test_a_flag_works_as_vllm_spells_it(args: str, field: str, value: object) -> None:
    made = parsed(*args.split())
    assert getattr(made, field) == value
    assert made.model == "m"


def test_what_is_no_option_stays_as_it_is() -> None:
    parser = serve_parser()
    args = ["a_b", "--x_y z", "--", "--max_model_len", "-tp", "--a.b"]
    assert spelled(args, parser) == args
    common = ("--disable-plugin", "--config")
    args = ["--plugin.my_plugin.a_key=b_c", "--x_y=z_z"]
    assert with_dashes(["--disable_plugin", "a_b", *args], common) == [
        "--disable-plugin", "a_b", *args,
    ]  # fmt: skip


def test_a_plugins_command_may_spell_its_own_flags_otherwise() -> None:
    parser = Parser(prog="octavo strange")
    parser.add_argument("--my_flag")
    parser.add_argument("--a.b")
    parser.add_argument("-tp")
    parser.add_argument("--my-other-flag", type=json.loads)
    args = ["--my_flag", "1", "--a.b", "2", "-tp", "3", "--my_other_flag.x", "4"]
    made = parser.parse_args(spelled(args, parser))
    assert vars(made) == {"my_flag": "1", "a.b": "2", "tp": "3", "my_other_flag": {"x": 4}}


def test_the_model_is_given_once() -> None:
    with pytest.raises(ConfigError, match="takes no argument"):
        parsed("a", "--model", "b")
    with pytest.raises(ConfigError, match="--model needs a value"):
        parsed("--model")


@pytest.mark.parametrize("text", ["1.0001K", "k", "1kk", "2 M", "1.0001k", "٣k"])
def test_other_suffixes_are_no_numbers(text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        whole_number(text)


def test_a_flag_that_needs_no_effect_is_told(caplog: pytest.LogCaptureFixture) -> None:
    made = parsed(
        "m", "--async-scheduling", "--no-enable-chunked-prefill", "--moe-backend", "triton",
        "--cudagraph-capture-sizes", "1", "2", "4", "--port", "1",
    )  # fmt: skip
    with caplog.at_level(logging.WARNING):
        tell_noted(made)
    assert [line.partition(" has no effect: ")[0] for line in caplog.messages] == [
        "--async-scheduling",
        "--no-enable-chunked-prefill",
        "--moe-backend",
        "--cudagraph-capture-sizes",
    ]
    assert caplog.messages[0].endswith("--async-depth 1 waits for each")
    assert made.port == 1
    assert not [name for name in vars(made) if "vllm" in name]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ("--enable-eplb", "takes no option '--enable-eplb'; here: not available yet"),
        ("--swap-space 4", "'--swap-space'; here: --swap-gib, with --preemption-mode swap"),
        ("-dp 2", "'--data-parallel-size'; here: one server for each"),
        ("--speculative-config.method ngram", "'--speculative-config'; here: not available yet"),
        (
            "--middleware a.b --middleware c",
            "'--middleware'; here: routes of a plugin, as --plugin",
        ),
        ("--kv-cache-memory-bytes many", "argument --kv-cache-memory-bytes: .*'many'"),
    ],
)
def test_a_flag_that_would_change_what_one_gets_is_an_error(args: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parsed("m", *args.split())


def test_a_file_as_the_documents_have_it_runs(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        'model: m\nhost: "127.0.0.1"\nport: 6379\nuvicorn-log-level: "info"\n'
        "tensor-parallel-size: 2\nmax-model-len: 16k\n"
        "hf-overrides: {a: 1}\nasync_scheduling: true\nenable-log-requests: true\nswap-space: 0\n"
        "api_server_count: 2\nkv-cache-memory-bytes: 1G\n"
    )
    made = parsed("--max-model-len", "1k", file=file)
    assert (made.model, made.port, made.tensor_parallel_size) == ("m", 6379, 2)
    assert made.uvicorn_log_level == "info"
    assert (made.max_model_len, made.log_requests, made.api_workers) == (1000, True, 2)
    assert (made.hf_overrides, made.kv_cache_memory_gib) == ({"a": 1}, 1.0)
    for text, said in (("swap-space: 4", "--swap-gib"), ("enable-eplb: true", "not available")):
        file.write_text(f"port: 1\n{text}")
        with pytest.raises(ConfigError, match=rf"config\.yaml:2: .*{said}"):
            parsed("m", file=file)


def test_a_batch_is_given_as_vllm_has_it() -> None:
    parser = Parser(prog="octavo run-batch")
    RunBatchCommand().configure(parser)
    for args in ("-i a.jsonl -o b.jsonl", "--output_file b.jsonl --input_file=a.jsonl"):
        given = [*args.split(), "--model", "m"]
        made = parser.parse_args(spelled(given, parser))
        assert (made.file, made.output, made.model) == (Path("a.jsonl"), Path("b.jsonl"), "m")


def test_values_of_keywords_have_vllms_words_too() -> None:
    given = {"model": "m", "dtype": "half", "max_model_len": -1, "model_impl": "vllm"}
    config = read_options(given, caller="LLM").config.model
    assert (config.dtype, config.max_model_len, config.model_impl) == ("float16", "auto", "octavo")


def test_variables_of_vllm_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    monkeypatch.setenv("VLLM_SOMETHING", "")
    assert vllm_variables() == [
        "VLLM_BATCH_INVARIANT is not read; --batch-invariant is",
        "VLLM_SOMETHING is not read",
    ]


def test_a_server_told_of_vllms_key_alone_does_not_start(monkeypatch, capsys) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    monkeypatch.delenv("OCTAVO_API_KEY", raising=False)
    assert main(["serve", "octavo/tiny"]) == 2
    err = capsys.readouterr().err
    assert "VLLM_API_KEY is set and not read" in err
    assert "secret" not in err
