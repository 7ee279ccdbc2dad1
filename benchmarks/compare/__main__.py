"""The command: runs the workers in turns, writes what they measured and prints the table."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from benchmarks.compare.report import Value, read_values, table, write_values
from benchmarks.compare.shapes import SHAPES, write_model
from benchmarks.compare.workloads import choose
from benchmarks.engine_process import environment

ENGINES = ("octavo", "vllm", "hf")
CACHE_VARIABLES = (
    "XDG_CACHE_HOME",
    "VLLM_CACHE_ROOT",
    "TRITON_CACHE_DIR",
    "TORCHINDUCTOR_CACHE_DIR",
    "CUDA_CACHE_PATH",
    "PYTHONPYCACHEPREFIX",
)
"""Where engines keep what they compile. Octavo's kernels are left where they are installed."""


def main() -> int:
    options = _options()
    if options.merge:
        values = read_values(options.merge)
        if options.out:
            write_values(values, options.out)
        print(table(values))
        return 0
    workloads = [workload.name for workload in choose(options.workloads.split(","))]
    engines, models = options.engines.split(","), options.models.split(",")
    for given, known in ((engines, ENGINES), (models, tuple(SHAPES))):
        for name in given:
            if name not in known:
                raise SystemExit(f"{name!r} is not one of {', '.join(known)}")
    values = []
    failures = 0
    with tempfile.TemporaryDirectory() as scratch:
        caches = options.caches or Path(scratch, "caches")
        for turn in range(options.rounds):
            for model in models:
                folder = write_model(SHAPES[model], Path(scratch, model))
                for engine in engines if turn % 2 == 0 else engines[::-1]:
                    start = time.monotonic()
                    measured, ok = _run_worker(
                        engine, model, folder, workloads, turn, caches, options
                    )
                    failures += not ok
                    values += measured
                    if options.out:
                        write_values(values, options.out)
                    print(
                        f"round {turn} {engine} {model}: {len(measured)} values in "
                        f"{time.monotonic() - start:.1f} s{'' if ok else ', FAILED'}",
                        flush=True,
                    )
    print(table(values))
    return 1 if failures else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__)
    parser.add_argument("--engines", default="octavo,vllm", help=f"of {', '.join(ENGINES)}")
    parser.add_argument("--models", default="8b", help=f"of {', '.join(SHAPES)}")
    parser.add_argument(
        "--workloads",
        default="startup,decode,prefill,throughput",
        help="groups, names or starts of names: decode,prefill_8192,throughput_1000",
    )
    parser.add_argument("--rounds", type=int, default=2, help="passes of each engine")
    parser.add_argument("--out", type=Path, help="JSON file for all raw values")
    parser.add_argument("--merge", type=Path, nargs="+", help="print the table of these files")
    parser.add_argument(
        "--caches",
        type=Path,
        help="folder for what engines compile, kept for the next run; default: none is kept. An "
        "engine's first process of a model in it is a cold start, later ones are warm",
    )
    parser.add_argument("--vllm-path", help="folder to import vLLM from; default: the environment")
    parser.add_argument("--timeout", type=float, default=590.0, help="seconds for one process")
    parser.add_argument("--verbose", action="store_true", help="show what the engines print")
    return parser.parse_args()


def _run_worker(
    engine: str,
    model: str,
    folder: Path,
    workloads: list[str],
    turn: int,
    caches: Path,
    options: argparse.Namespace,
) -> tuple[list[Value], bool]:
    """Run one process to its end; returns what it measured and whether it ended well."""
    kept = caches / engine
    kept.mkdir(parents=True, exist_ok=True)
    warmed = kept / f"{model}.warm"
    env = environment(engine, options.vllm_path)
    env |= {name: str(kept / name.lower()) for name in CACHE_VARIABLES}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # compiling torch's modules takes 1.5 s
    with tempfile.TemporaryDirectory() as scratch:
        out, log = Path(scratch, "values"), Path(scratch, "log")
        out.touch()
        job = {
            "engine": engine,
            "model": model,
            "folder": str(folder),
            "workloads": workloads,
            "startup_metric": "startup_warm" if warmed.exists() else "startup_cold",
            "out": str(out),
            "started": time.time(),
        }
        command = [sys.executable, "-m", "benchmarks.compare.worker", json.dumps(job)]
        with log.open("wb") as printed:
            process = subprocess.Popen(
                command,
                env=env,
                stdout=None if options.verbose else printed,
                stderr=None if options.verbose else subprocess.STDOUT,
                start_new_session=True,
            )
            ok = _wait(process, options.timeout)
        if not ok and not options.verbose:
            print("\n".join(log.read_text(errors="replace").splitlines()[-40:]), file=sys.stderr)
        lines = [json.loads(line) for line in out.read_text().splitlines()]
    if ok:
        warmed.touch()
    return [Value(engine=engine, model=model, round=turn, **line) for line in lines], ok


def _wait(process: subprocess.Popen[bytes], timeout: float) -> bool:
    """Whether it ended well in time; processes that it started must not hold the device longer."""
    try:
        return process.wait(timeout) == 0
    except subprocess.TimeoutExpired:
        print(f"still running after {timeout:g} s, ended", file=sys.stderr)
        return False
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


if __name__ == "__main__":
    sys.exit(main())
