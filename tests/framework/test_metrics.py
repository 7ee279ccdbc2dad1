"""Counters, histograms and their text, and what a meter makes of steps and ends of requests."""

from __future__ import annotations

import math

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from octavo.observability.metrics import (
    Counter,
    Histogram,
    MetricValues,
    add_up,
    exposition,
    gauge,
)
from octavo.observability.request_metrics import (
    MOST_REMEMBERED,
    NEXT_TOKEN_SECONDS,
    RequestMeter,
    token_bounds,
)
from octavo_registry import RequestOutcome


def samples(*metrics: MetricValues, **shared: str) -> dict[tuple[str, ...], float]:
    """What Prometheus' own parser reads: name and labels' values, and the value."""
    families = text_string_to_metric_families(exposition(metrics, shared))
    return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}


def read(meter: RequestMeter) -> dict[tuple[str, ...], float]:
    return samples(*meter.read())


def outcome(**more) -> RequestOutcome:
    given = {
        "request_id": "a",
        "finish_reasons": ("stop",),
        "num_prompt_tokens": 7,
        "num_cached_tokens": 0,
        "num_output_tokens": 11,
        "seconds_to_first_token": 0.25,
        "seconds": 1.25,
        "seconds_in_queue": 0.125,
        "seconds_in_prefill": 0.0625,
    }
    return RequestOutcome(**{**given, **more})


def test_prometheus_reads_labels_with_quotes_newlines_and_backslashes() -> None:
    name = 'a "b"\n\\c'
    assert samples(gauge("up", "Help.", 1, of=name), model_name=name) == {
        ("octavo:up", name, name): 1
    }


def test_a_histograms_buckets_add_up_and_hold_values_at_their_bounds() -> None:
    made = Histogram("size", "Help.", (1.0, 2.0))
    for value, count in ((1.0, 1), (1.5, 2), (99.0, 3)):
        made.observe(value, count)
    assert samples(made.read()) == {
        ("octavo:size_bucket", "1.0"): 1,
        ("octavo:size_bucket", "2.0"): 3,
        ("octavo:size_bucket", "+Inf"): 6,
        ("octavo:size_sum",): 301,
        ("octavo:size_count",): 6,
    }


def test_a_histogram_without_a_value_is_shown_with_zeros() -> None:
    assert samples(Histogram("size", "Help.", (1.0,)).read())["octavo:size_count",] == 0


def test_metrics_of_several_processes_are_added_by_label() -> None:
    counters = [Counter("n_total", "Help.", ("of",)) for _ in range(2)]
    histograms = [Histogram("size", "Help.", (1.0,)) for _ in range(2)]
    for number, (counter, histogram) in enumerate(zip(counters, histograms, strict=True)):
        counter.add(number + 1, ("both",))
        counter.add(1, (f"only {number}",))
        histogram.observe(number)
        histogram.observe(5)
    sums = add_up([c.read(), h.read()] for c, h in zip(counters, histograms, strict=True))
    found = samples(*sums)
    assert found["octavo:n_total", "both"] == 3
    assert found["octavo:n_total", "only 0"] == found["octavo:n_total", "only 1"] == 1
    assert found["octavo:size_bucket", "1.0"] == 2
    assert found["octavo:size_count",] == 4
    assert found["octavo:size_sum",] == 11


def test_adding_up_leaves_what_was_given_as_it_was() -> None:
    counters = [Counter("n_total", "Help.").read() for _ in range(2)]
    before = msgspec.json.encode(counters)
    add_up([counters, counters])
    assert msgspec.json.encode(counters) == before


def test_metrics_cross_between_processes_unchanged() -> None:
    made = Histogram("size", "Help.", (1.0,), ("of",))
    made.observe(0.5, 3, ("x",))
    sent = msgspec.msgpack.encode([made.read(), gauge("up", "Help.", 1)])
    assert msgspec.msgpack.decode(sent, type=list[MetricValues]) == [
        made.read(),
        gauge("up", "Help.", 1),
    ]


def test_the_bounds_of_lengths_end_at_the_context() -> None:
    assert token_bounds(250) == [1, 2, 5, 10, 20, 50, 100, 200]


@pytest.mark.parametrize(
    "steps",
    [
        [([1, 2, 3], 0.0), ([1, 2, 3], 0.5), ([1, 2, 3], 1.5)],
        [([1], 0.0), ([1, 2], 1.0), ([2, 1], 1.25), ([2], 2.0), ([1, 2, 3], 5.0), ([3], 9.0)],
        [([1, 2], 0.0), ([1, 2], 1.0), ([3], 2.0), ([1, 2], 3.0), ([1, 2], 3.5)],
    ],
    ids=["steady", "changing", "preempted"],
)
def test_the_time_between_tokens_is_that_of_each_sequence(steps) -> None:
    meter = RequestMeter(1000)
    last: dict[int, float] = {}
    expected = []
    for sequences, now in steps:
        meter.step(sequences, [], now)
        expected += [now - last[s] for s in sequences if s in last]
        last.update(dict.fromkeys(sequences, now))
    found = read(meter)
    assert found["octavo:generation_tokens_total",] == sum(len(s) for s, _ in steps)
    assert found["octavo:inter_token_latency_seconds_count",] == len(expected)
    assert math.isclose(found["octavo:inter_token_latency_seconds_sum",], sum(expected))
    for bound in NEXT_TOKEN_SECONDS:
        at_most = found["octavo:inter_token_latency_seconds_bucket", str(float(bound))]
        assert at_most == sum(seconds <= bound for seconds in expected)


def test_the_tokens_of_a_burst_share_the_time_since_the_last() -> None:
    meter = RequestMeter(1000)
    meter.step([1, 2], [], 0.0)
    meter.step([1, 2], [4, 1], 2.0)
    meter.step([1, 2], [], 3.0)
    found = read(meter)
    assert found["octavo:generation_tokens_total",] == 9
    assert found["octavo:inter_token_latency_seconds_count",] == 7
    assert math.isclose(found["octavo:inter_token_latency_seconds_sum",], 6.0)
    at_most = found["octavo:inter_token_latency_seconds_bucket", "0.5"]
    assert at_most == 4


def test_sequences_of_long_ago_are_forgotten() -> None:
    meter = RequestMeter(1000)
    for number in range(5 * MOST_REMEMBERED):
        meter.step([number], [], number * 1.0)
    assert len(meter._last_seconds) <= 2 * MOST_REMEMBERED


def test_a_request_is_counted_once_by_the_worst_of_its_ends() -> None:
    meter = RequestMeter(1000)
    meter.finished(outcome(finish_reasons=("stop", "length")), 16)
    meter.finished(outcome(finish_reasons=("length", "error", "stop")), 16)
    found = read(meter)
    reasons = {key[1]: v for key, v in found.items() if key[0] == "octavo:request_success_total"}
    assert reasons == {"error": 1, "abort": 0, "length": 1, "stop": 0}
    assert found["octavo:request_params_n_sum",] == 5


def test_a_requests_time_is_told_by_its_stages() -> None:
    meter = RequestMeter(1000)
    meter.first_token(0.25, 7, 4)
    meter.finished(outcome(), 16)
    found = read(meter)
    sums = {key[0].removeprefix("octavo:"): v for key, v in found.items() if len(key) == 1}
    assert sums["time_to_first_token_seconds_sum"] == 0.25
    assert sums["prompt_tokens_total"] == 7
    assert sums["prompt_tokens_cached_total"] == 4
    assert sums["request_queue_time_seconds_sum"] == 0.125
    assert sums["request_prefill_time_seconds_sum"] == 0.0625
    assert sums["request_decode_time_seconds_sum"] == 1.0
    assert sums["request_inference_time_seconds_sum"] == 1.0625
    assert sums["e2e_request_latency_seconds_sum"] == 1.25
    assert math.isclose(sums["request_time_per_output_token_seconds_sum"], 0.1)
    assert sums["request_generation_tokens_sum"] == 11
    assert sums["request_params_max_tokens_sum"] == 16


def test_a_request_that_was_refused_has_no_times_but_an_end() -> None:
    meter = RequestMeter(1000)
    refused = outcome(
        finish_reasons=("error",),
        num_output_tokens=0,
        seconds_to_first_token=None,
        seconds_in_queue=None,
        seconds_in_prefill=None,
    )
    meter.finished(refused, 16)
    found = read(meter)
    assert found["octavo:e2e_request_latency_seconds_count",] == 1
    for stage in ("queue", "prefill", "decode", "inference"):
        assert found[f"octavo:request_{stage}_time_seconds_count",] == 0
