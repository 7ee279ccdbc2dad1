import json
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.compare.limits import limit_seconds
from benchmarks.compare.report import Value, read_values, table, write_values
from benchmarks.compare.shapes import SHAPES, write_model
from benchmarks.compare.workloads import (
    FIRST_TOKENS,
    LAST_TOKENS,
    WORKLOADS,
    Prompts,
    choose,
    make_prompts,
    measure,
)


class Counting:
    """An engine that remembers what it was asked."""

    max_requests: int | None = None

    def __init__(self, missing: int = 0) -> None:
        self.missing = missing
        self.calls: list[tuple[int, int, int]] = []

    def run(self, prompts: Prompts, num_tokens: int) -> Prompts:
        self.calls.append((len(prompts), len(prompts[0]), num_tokens))
        return [[0] * (num_tokens - self.missing) for _ in prompts]


def test_workloads_are_chosen_by_group_by_name_and_by_the_start_of_a_name() -> None:
    names = [workload.name for workload in choose(["prefill", "decode_b1_", "startup"])]
    assert names == [
        "startup",
        "prefill_1024",
        "prefill_8192",
        "prefill_32768",
        "decode_b1_ctx1024",
    ]
    with pytest.raises(ValueError, match="no workload 'decod3'; known: startup, decode_b1_ctx1024"):
        choose(["decod3"])


def test_prompts_are_the_same_in_every_process_and_never_repeat() -> None:
    workload = WORKLOADS["decode_b8_ctx1024"]
    first = make_prompts(workload, tokens=16, vocab_size=1000, salt=(0, "first"))
    assert first == make_prompts(workload, tokens=16, vocab_size=1000, salt=(0, "first"))
    assert first != make_prompts(workload, tokens=16, vocab_size=1000, salt=(0, "last"))
    assert len({tuple(prompt) for prompt in first}) == 8
    assert all(10 <= token < 1000 for prompt in first for token in prompt)


def test_a_decode_step_is_the_difference_of_two_lengths() -> None:
    engine, workload = Counting(), WORKLOADS["decode_b8_ctx1024"]
    assert len(list(measure(workload, engine, 1000))) == workload.repeats
    warm_up, *asked = engine.calls
    assert warm_up[:2] == (8, 1024)  # whatever an engine prepares for a shape, it has by now
    assert asked == [(8, 1024, FIRST_TOKENS), (8, 1024, LAST_TOKENS)] * workload.repeats


def test_an_engine_that_returns_fewer_tokens_is_no_result() -> None:
    with pytest.raises(AssertionError, match=r"prefill_1024: asked 1 requests for 1 tokens .* \[0"):
        list(measure(WORKLOADS["prefill_1024"], Counting(missing=1), 1000))


@pytest.mark.parametrize(
    ("model", "workload", "milliseconds"),
    [  # as worked out by hand from 4.3 TB/s, 790 and 600 TFLOP/s
        ("8b", "decode_b1_ctx1024", 3.52),
        ("8b", "decode_b32_ctx1024", 4.49),
        ("8b", "decode_b256_ctx512", 8.86),
        ("1b", "decode_b128_ctx1024", 1.57),
        ("8b", "prefill_1024", 18.6),
        ("8b", "prefill_32768", 1048),
        ("1b", "prefill_8192", 27.5),
        ("8b", "throughput_1000x512+256", 19010),
    ],
)
def test_limits_are_those_of_bytes_and_operations(
    model: str, workload: str, milliseconds: float
) -> None:
    seconds = limit_seconds(SHAPES[model], WORKLOADS[workload])
    assert seconds is not None
    assert seconds * 1e3 == pytest.approx(milliseconds, rel=0.01)


def test_parameters_are_those_of_the_shapes_namesakes() -> None:
    billions = {
        name: (shape.body_parameters + shape.head_parameters) / 1e9
        for name, shape in SHAPES.items()
    }
    assert billions["8b"] == pytest.approx(7.504, abs=1e-3)
    assert billions["3b"] == pytest.approx(3.212, abs=1e-3)
    assert billions["1b"] == pytest.approx(1.236, abs=1e-3)


def value(engine: str, metric: str, seconds: float, turn: int = 0) -> Value:
    return Value(engine=engine, model="8b", metric=metric, round=turn, seconds=seconds)


def row_of(printed: str, metric: str) -> list[str]:
    line = next(line for line in printed.splitlines() if metric in line)
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_files_of_several_runs_make_one_table_of_medians(tmp_path: Path) -> None:
    ours = [value("octavo", "decode_b1_ctx1024", s, i) for i, s in enumerate((4e-3, 9e-3, 4.2e-3))]
    write_values(ours, tmp_path / "a.json")
    write_values([value("vllm", "decode_b1_ctx1024", 5.25e-3)], tmp_path / "b.json")
    values = read_values([tmp_path / "a.json", tmp_path / "b.json"])
    assert len(values) == 4
    row = row_of(table(values), "decode_b1")
    assert row[2:] == ["ms", "4.2 ±60%", "5.25", "1.25", "3.522", "1.19", "pass"]


def test_throughput_is_shown_in_tokens_and_more_is_better() -> None:
    values = [
        value("octavo", "throughput_1000x512+256", 32.0),
        value("vllm", "throughput_1000x512+256", 25.6),
    ]
    row = row_of(table(values), "throughput")
    assert row[2:6] == ["out tok/s", "8000", "10000", "0.80"]
    assert row[-1] == "FAIL < 1.08x"


def test_start_up_has_a_bar_of_its_own() -> None:
    assert row_of(table([value("octavo", "startup_warm", 6.5)]), "startup")[-1] == "FAIL > 6 s"
    assert row_of(table([value("octavo", "startup_warm", 5.5)]), "startup")[-1] == "pass"
    assert row_of(table([value("octavo", "startup_cold", 6.5)]), "startup")[-1] == "pass"


def test_a_third_shape_owes_the_mean_of_the_other_twos_bars() -> None:
    bars = {"8b": 1.15, "1b": 1.5, "3b": 1.325}
    for model, bar in bars.items():
        for times, verdict in ((bar + 0.01, "pass"), (bar - 0.01, f"FAIL < {bar:g}x")):
            ours = replace(value("octavo", "decode_b1_ctx1024", 1.0), model=model)
            theirs = replace(ours, engine="vllm", seconds=times)
            assert row_of(table([ours, theirs]), "decode_b1")[-1] == verdict


def test_a_model_folder_is_a_config_that_engines_read(tmp_path: Path) -> None:
    config = json.loads((write_model(SHAPES["3b"], tmp_path / "m") / "config.json").read_text())
    assert (config["hidden_size"], config["num_key_value_heads"], config["head_dim"]) == (
        3072,
        8,
        128,
    )
