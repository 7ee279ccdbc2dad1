"""Ranks in processes of their own: tokens of one rank, and what becomes of those that fail."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fragile_rank
from octavo.config import (
    CacheConfig,
    EngineConfig,
    LoRAConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
)
from octavo.engine.core import EngineCore
from octavo.errors import ConfigError, EngineDeadError, ModelError
from octavo.guided.choose import remembering_choice
from octavo.messages import EngineRequest, TokenSampling
from octavo.params import GuidedParams
from octavo.testing.random_model import make_random_model
from octavo_registry import PluginHost

PATIENCE_SECONDS = 20
RANKS = {"tensor_parallel_size": 2}
"""For which executor ``ranks`` is the one that is taken."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_random_model(
        tmp_path_factory.mktemp("model"), vocab_size=320, max_position_embeddings=128
    )


def config_for(folder: Path, *, architecture: str | None = None, **parallel: Any) -> EngineConfig:
    overrides = {} if architecture is None else {"architectures": [architecture]}
    return EngineConfig(
        model=ModelConfig(model=str(folder), device="cpu", dtype="float32", hf_overrides=overrides),
        cache=CacheConfig(num_blocks=36, block_size=4, swap_gib=0.001),
        scheduler=SchedulerConfig(
            max_num_seqs=6, max_num_batched_tokens=24, preemption_mode="swap"
        ),
        parallel=ParallelConfig(**parallel),
    )


@pytest.fixture
def make_core(folder: Path) -> Iterator[Callable[..., EngineCore]]:
    cores = []

    def make(host: PluginHost | None = None, **options: Any) -> EngineCore:
        cores.append(EngineCore(config_for(folder, **options), host or PluginHost.discover()))
        return cores[-1]

    yield make
    for core in cores:
        core.close()


def request(number: int, prompt: list[int], n: int = 1, **more: Any) -> EngineRequest:
    guide = more.pop("guide", None)
    sampling = {"temperature": number % 2, "seed": number, "max_tokens": 12, **more}
    return EngineRequest(
        request_id=str(number),
        sequences=tuple(100 * number + i for i in range(n)),
        prompt_token_ids=prompt,
        sampling=TokenSampling(**sampling),
        guide=guide,
    )


def mixed() -> list[EngineRequest]:
    """Forked, swapped, guided, with log probabilities, bias, and long prompts in chunks."""
    guide = remembering_choice(PluginHost.discover())(GuidedParams(regex="[a-e]{6}"))
    return [
        request(1, [7] * 40, logprobs=2),
        request(2, [8, 9, 10], n=3),
        request(3, [11] * 5, prompt_logprobs=1),
        request(4, [12, 13], logit_bias={5: 3.0, 6: -2.0}),
        request(5, [14, 15, 16], guide=guide),
        request(6, list(range(20, 70)), max_tokens=30),
    ]


def run(core: EngineCore) -> tuple[dict[int, Any], dict[int, str]]:
    """Tokens with their log probabilities, and how sequences ended."""
    found: dict[int, Any] = {}
    ends: dict[int, str] = {}
    while core.has_work:
        outputs = core.step()
        for sequence, token in zip(outputs.sequences, outputs.tokens, strict=True):
            entries = outputs.logprobs.get(sequence, [])
            found.setdefault(sequence, []).append((token, [entry.token_ids for entry in entries]))
        for report in outputs.prompts:
            if report.logprobs:
                found[-report.sequence] = [entry.token_ids for entry in report.logprobs]
        ends.update((end.sequence, end.error or end.reason) for end in outputs.ends)
    return found, ends


def test_two_processes_give_the_tokens_of_one_device(make_core) -> None:
    cores = [make_core(), make_core(**RANKS)]
    found, requests = [], mixed()
    for core in cores:
        core.add(requests)
        found.append(run(core))
    assert found[0] == found[1]
    assert set(found[0][1].values()) <= {"length", "stop"}
    assert len(found[0][1]) == 8


def fragile(make_core: Callable[..., EngineCore]) -> EngineCore:
    host = PluginHost.discover(plugins=["fragile_rank"])
    core: EngineCore = make_core(host, architecture="FragileRank", **RANKS)
    return core


@pytest.mark.parametrize("token", [fragile_rank.RAISES, fragile_rank.RAISES_BEHIND])
def test_a_step_that_one_rank_raises_in_costs_that_request_alone(make_core, token) -> None:
    healthy = [request(i, [5 + i] * 6) for i in range(1, 5)]
    alone = make_core()
    alone.add(healthy)
    expected, _ = run(alone)
    core = fragile(make_core)
    core.add([*healthy[:2], request(9, [5, token, 6]), *healthy[2:]])
    found, ends = run(core)
    assert f"token {token} is too much" in ends.pop(900)
    assert found == expected
    core.add([request(7, [5, 6, 7])])  # the engine goes on as if nothing had been
    assert run(core)[1] == {700: "length"}


def gone(pids: list[int]) -> bool:
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except FileNotFoundError:
            continue
        if state != "Z":
            return False
    return True


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not gone(pids):
        assert time.monotonic() < deadline, "a rank's process is left"
        time.sleep(0.02)


def test_a_rank_that_dies_in_a_step_ends_the_engine_and_is_named(make_core) -> None:
    core = fragile(make_core)
    pids = core._executor.pids
    core.add([request(1, [5, 6, fragile_rank.STOPS])])
    with pytest.raises(EngineDeadError, match="rank 1 was killed by SIGKILL"):
        run(core)
    wait_until_gone(pids)


def test_a_rank_that_is_killed_while_nothing_runs_is_seen_with_the_next_step(make_core) -> None:
    core = make_core(**RANKS)
    pids = core._executor.pids
    os.kill(pids[0], signal.SIGKILL)
    wait_until_gone(pids[:1])
    core.add([request(1, [5, 6])])
    with pytest.raises(EngineDeadError, match="rank 0 was killed by SIGKILL"):
        run(core)
    wait_until_gone(pids)


def test_ranks_end_with_an_engine_that_nobody_closes(folder: Path) -> None:
    core = EngineCore(config_for(folder, **RANKS), PluginHost.discover())
    core.add([request(1, [5, 6])])
    run(core)
    pids = core._executor.pids
    del core
    gc.collect()
    wait_until_gone(pids)


def look_for_a_while(core: EngineCore) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        core.use_idle_time()


def test_a_rank_that_is_killed_while_nothing_runs_is_seen_in_idle_time(make_core) -> None:
    core = make_core(**RANKS)
    pids = core._executor.pids
    assert [core.use_idle_time() for _ in range(3)] == [False] * 3
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(EngineDeadError, match="rank 1 was killed by SIGKILL"):
        look_for_a_while(core)
    wait_until_gone(pids)


ENGINE = """
import json, sys, threading
from octavo.engine.core import EngineCore
from octavo_registry import PluginHost
from test_ranks_executor import RANKS, config_for
if __name__ == "__main__":
    core = EngineCore(config_for(sys.argv[1], **RANKS), PluginHost.discover())
    print(json.dumps(core._executor.pids), flush=True)
    threading.Event().wait()
"""


def test_ranks_end_with_an_engine_that_is_killed(folder) -> None:
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    engine = subprocess.Popen(
        [sys.executable, "-c", ENGINE, str(folder)],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )
    with engine:
        assert engine.stdout is not None
        pids = json.loads(engine.stdout.readline())
        assert len(pids) == 2
        assert not gone(pids)
        engine.kill()
    wait_until_gone(pids)


def test_what_a_rank_cannot_load_is_raised_by_name_and_no_process_is_left(make_core, tmp_path):
    folder = make_random_model(tmp_path)
    (folder / "model.safetensors").write_bytes(b"damaged")
    config = config_for(folder, **RANKS)
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        EngineCore(config, PluginHost.discover())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parallel": ParallelConfig(pipeline_parallel_size=2)}, "pipelines yet"),
        (
            {"parallel": ParallelConfig(executor="local", tensor_parallel_size=2)},
            "'local' drives one device, not 2; leave it out",
        ),
        (
            {
                "parallel": ParallelConfig(executor="ranks", tensor_parallel_size=2),
                "lora": LoRAConfig(enable_lora=True),
            },
            "enable_lora: adapters are for one device yet",
        ),
        ({"parallel": ParallelConfig(executor="ranks", tensor_parallel_size=3)}, "split|shared"),
    ],
)
def test_what_it_does_not_do_is_refused(folder, changes, message) -> None:
    with pytest.raises((ConfigError, ModelError), match=message):
        EngineCore(replace(config_for(folder), **changes), PluginHost.discover())
