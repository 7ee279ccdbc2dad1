"""``octavo bench throughput``, ``latency`` and ``startup`` on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from octavo.cli import main
from octavo.testing.random_model import make_random_model


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


@pytest.mark.slow
def test_startup_is_from_exec_to_the_first_token(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    flags = ["--num-warm", "1", "--num-cold", "1", "--num-blocks", "64"]
    assert main(["bench", "startup", str(model), *flags, "--output-json", str(out)]) == 0
    (warm,), (cold,) = figures(out)["warm_starts"], figures(out)["cold_starts"]
    for start in (warm, cold):
        parts = start["import"] + start["load"] + start["first_token"]
        assert parts == pytest.approx(start["total"])
