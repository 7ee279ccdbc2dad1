"""Engines in processes of their own, as each wants the whole device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

VLLM = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    # FlashInfer's sampler is compiled on first use, which takes a network.
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
}
"""What it reads when it is imported, unless the user has set it."""


def environment(engine: str, vllm_path: str | None) -> dict[str, str]:
    """Variables for a process of that engine; ``vllm_path`` is where vLLM is imported from."""
    if engine != "vllm":
        return dict(os.environ)
    found = VLLM | dict(os.environ)
    if vllm_path:
        paths = [vllm_path, os.environ.get("PYTHONPATH", "")]
        found["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return found


def measured(module: str, job: dict[str, Any], vllm_path: str | None) -> list[dict[str, Any]]:
    """Run ``python -m module measure`` for the engine of a job; returns its lines of JSON."""
    done = subprocess.run(
        [sys.executable, "-m", module, "measure", json.dumps(job)],
        env=environment(job["engine"], vllm_path),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
