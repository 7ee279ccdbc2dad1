"""``octavo bench throughput``, ``latency`` and ``startup`` on a tiny model."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest
import torch

from octavo import LLM
from octavo.benchmarking.offline import LatencyBench, ThroughputBench, latency
from octavo.benchmarking.serve import ServeBench
from octavo.benchmarking.startup import StartupBench
from octavo.cli import main
from octavo.testing.random_model import make_random_model
from octavo.wording import counted


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_random_model(tmp_path_factory.mktemp("model"), max_position_embeddings=128)


def figures(path: Path) -> dict:
    return json.loads(path.read_text())


def test_throughput_counts_every_token(model: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "out.json"
    lengths = ["--num-prompts", "3", "--input-len", "9", "--output-len", "4"]
    flags = ["--num-blocks", "64", "--output-json", str(out)]
    assert main(["bench", "throughput", str(model), *lengths, *flags]) == 0
    found = figures(out)
    assert (found["requests"], found["input_tokens"], found["output_tokens"]) == (3, 27, 12)
    assert found["output_throughput"] == pytest.approx(12 / found["seconds"])
    assert "output throughput" in capsys.readouterr().out


def test_latency_times_each_batch(model: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "out.json"
    flags = ["--batch-size", "2", "--num-iters", "3", "--input-len", "4", "--output-len", "3"]
    more = ["--num-blocks", "64", "--output-json", str(out)]
    assert main(["bench", "latency", str(model), *flags, *more]) == 0
    assert len(figures(out)["batches"]) == 3
    assert figures(out)["latency_ms"]["median"] > 0
    assert figures(out)["machine"]["torch"] == torch.__version__
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        f"{model}, LlamaForCausalLM in float32",
        "3 batches of 2 requests, 4 tokens in, 3 out, after 2 to warm up",
    ]
    assert lines[-1].endswith(f"torch {torch.__version__}, Python {platform.python_version()}")


def test_a_figure_of_one_is_in_the_singular() -> None:
    assert str(ThroughputBench(num_prompts=1, input_len=1)).startswith("1 request at once, 1 token")
    assert str(LatencyBench(num_iters=1, batch_size=1)).startswith("1 batch of 1 request,")
    assert str(StartupBench(num_warm=0, num_cold=1)) == "1 start with empty caches"
    assert str(ServeBench(num_prompts=1, request_rate=2)).startswith("1 request at 2 a second,")
    assert (counted(0, "row"), counted(2048, "row")) == ("0 rows", "2,048 rows")


def test_progress_is_told_before_each_batch(model: Path) -> None:
    told: list[str] = []
    with LLM(model, num_blocks=64) as llm:
        latency(llm, LatencyBench(num_warmups=1, num_iters=1, output_len=2), told.append)
    assert [text.partition(",")[0] for text in told] == ["batch 1 of 2", "batch 2 of 2"]


@pytest.mark.parametrize("kind", ["latency", "throughput"])
def test_lengths_beyond_the_context_are_refused_before_the_model_is_loaded(
    model: Path, capsys, monkeypatch, kind: str
) -> None:
    monkeypatch.setattr(LLM, "__init__", None)
    flags = ["--input-len", "100", "--output-len", "29"]
    assert main(["bench", kind, str(model), *flags]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "100 tokens in, 29 out is 129 tokens at most, more than the 128" in err


@pytest.mark.slow
def test_startup_is_from_exec_to_the_first_token(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    flags = ["--num-warm", "1", "--num-cold", "1", "--num-blocks", "64"]
    assert main(["bench", "startup", str(model), *flags, "--output-json", str(out)]) == 0
    (warm,), (cold,) = figures(out)["warm_starts"], figures(out)["cold_starts"]
    for start in (warm, cold):
        parts = start["import"] + start["load"] + start["first_token"]
        assert parts == pytest.approx(start["total"])
