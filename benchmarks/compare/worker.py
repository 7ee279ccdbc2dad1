"""One engine in one process: python -m benchmarks.compare.worker JOB, a JSON object.

Nothing heavy is imported before the engine is: the time from ``started`` to the first token counts.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.compare.shapes import SHAPES
from benchmarks.compare.workloads import STARTUP, WORKLOADS, make_prompts, measure


def main(job: dict[str, Any]) -> None:
    """Append a line to ``job["out"]`` for each measured value, so that a crash loses only one."""
    vocab_size = SHAPES[job["model"]].vocab_size
    first = make_prompts(STARTUP, tokens=STARTUP.prompt_tokens, vocab_size=vocab_size, salt=0)
    engine = importlib.import_module(f"benchmarks.compare.{job['engine']}_engine").make(
        job["folder"]
    )
    engine.run(first, STARTUP.output_tokens)
    startup = time.time() - job["started"]
    with Path(job["out"]).open("a") as out:

        def put(metric: str, seconds: float) -> None:
            print(json.dumps({"metric": metric, "seconds": seconds}), file=out, flush=True)

        put(job["startup_metric"], startup)
        for name in job["workloads"]:
            workload = WORKLOADS[name]
            allowed = engine.max_requests
            if workload.group == "startup" or (allowed and workload.requests > allowed):
                continue
            for seconds in measure(workload, engine, vocab_size):
                put(name, seconds)


if __name__ == "__main__":  # vLLM starts its engine by importing this file again
    main(json.loads(sys.argv[1]))
