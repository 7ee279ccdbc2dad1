"""From exec to the first token: what a user waits for, and a fleet that grows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.benchmarking.machine import describe_machine
from octavo.benchmarking.processes import BenchError
from octavo.benchmarking.summary import spread
from octavo.config.checks import check_range
from octavo.errors import ConfigError
from octavo.wording import counted

CACHES = ("OCTAVO_KERNEL_CACHE", "CUDA_CACHE_PATH", "PYTHONPYCACHEPREFIX")
"""Folders of what is compiled on the way; a cold start has empty ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupBench:
    """A new process each time."""

    num_warm: int = 3
    """Starts with all caches full; one more goes before them, in no figure."""
    num_cold: int = 0
    """Starts with empty caches of kernels and bytecode; the files' own cache is the system's."""
    timeout_seconds: float = 1800.0
    """A start that takes longer is an error."""

    def __post_init__(self) -> None:
        check_range("num_warm", self.num_warm, 0)
        check_range("num_cold", self.num_cold, 0)
        check_range("timeout_seconds", self.timeout_seconds, 1e-3)
        if self.num_warm + self.num_cold == 0:
            raise ConfigError("num_warm=0 and num_cold=0: one of them must be above 0")

    def __str__(self) -> str:
        """In words."""
        cold = f"{counted(self.num_cold, 'start')} with empty caches"
        warm = f"{counted(self.num_warm, 'start')} with full ones after one that fills them"
        return " and ".join([cold] * bool(self.num_cold) + [warm] * bool(self.num_warm))


def startup(
    options: dict[str, Any], bench: StartupBench, tell: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """Seconds of each start and of its parts, as JSON has them, their spread, and the machine.

    ``tell`` hears how far it is.
    """
    cold = []
    machine: dict[str, str] = {}
    for number in range(bench.num_cold):
        tell(f"cold start {number + 1} of {bench.num_cold}")
        with tempfile.TemporaryDirectory() as folder:
            caches = {name: str(Path(folder) / name) for name in CACHES}
            parts, machine = _start(options, caches, bench.timeout_seconds)
            cold.append(parts)
    warm = []
    for number in range(bench.num_warm and bench.num_warm + 1):
        tell(f"warm start {number} of {bench.num_warm}" if number else "a start to fill the caches")
        parts, machine = _start(options, {}, bench.timeout_seconds)
        if number:
            warm.append(parts)
    figures: dict[str, Any] = {"machine": machine}
    for name, starts in (("warm", warm), ("cold", cold)):
        figures[f"{name}_starts"] = starts
        for part in ("import", "load", "first_token", "total"):
            of_part = spread([each[part] for each in starts])
            if of_part is not None:
                figures[f"{name}_{part}_ms"] = of_part
    return figures


def _start(
    options: dict[str, Any], caches: dict[str, str], timeout: float
) -> tuple[dict[str, float], dict[str, str]]:
    """Seconds until Octavo is imported, the model is loaded, the first token is there; the sum.

    And what the process says of its machine.
    """
    command = [sys.executable, "-m", "octavo.benchmarking.startup", json.dumps(options)]
    env = {**os.environ, **caches, "PYTHONPATH": os.pathsep.join(sys.path)}
    began = time.time()
    try:
        ended = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"the start took longer than {timeout:g} s") from error
    lines = ended.stdout.splitlines()
    if ended.returncode or not lines:
        said = ended.stderr.strip().splitlines()
        raise BenchError(f"the start failed: {said[-1] if said else ended.returncode}")
    (imported, loaded, first), machine = json.loads(lines[-1])
    parts = {
        "import": imported - began,
        "load": loaded - imported,
        "first_token": first - loaded,
        "total": first - began,
    }
    return parts, machine


def main() -> None:
    """Start an engine as the parent says, and write when what was done."""
    options = json.loads(sys.argv[1])
    from octavo.frontend.llm import LLM
    from octavo.params import SamplingParams

    imported = time.time()
    llm = LLM(**options, engine_process=False)
    loaded = time.time()
    llm.generate(
        {"prompt_token_ids": [1] * 64},
        SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, detokenize=False),
        use_tqdm=False,
    )
    times = [imported, loaded, time.time()]
    sys.stdout.write(json.dumps([times, describe_machine()]) + "\n")
    sys.stdout.flush()
    llm.close()


if __name__ == "__main__":
    main()
