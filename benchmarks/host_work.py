"""Host work of a steady step: python -m benchmarks.host_work [--device cuda] [--rows N] [--sampled]

256 greedy rows of a one-layer model. Counted is what the host does besides the model: the CPU time
of the engine's thread (planning, packing, reading results, telling the client) and, on a CPU apart
from it, the time in the worker's runner around the model's forward, logits and attention plan. On
CUDA the model runs while the host works, so there the time from step to step is what counts: the
model is so small that it never makes the host wait. All rows fill their blocks in the same step,
each 16th, which the means show and the medians don't.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from typing import Any

from octavo import SamplingParams
from octavo.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from octavo.detokenizing import OutputProcessor
from octavo.engine.core import EngineCore
from octavo.messages import EngineRequest, TokenSampling
from octavo.testing.random_model import make_random_model
from octavo_registry import PluginHost

GREEDY: dict[str, Any] = {"temperature": 0.0}
SAMPLED: dict[str, Any] = {
    "temperature": 0.8,
    "top_p": 0.9,
    "stop_token_ids": (600, 601),  # beyond the vocabulary: looked for, never drawn
    "eos_token_ids": (602,),
}


class TimedModel:
    """Passes calls on to the model and counts the seconds in them."""

    def __init__(self, model: object) -> None:
        self._model = model
        self.seconds = 0.0

    def __getattr__(self, name: str) -> object:
        method = getattr(self._model, name)

        def timed(*args: object) -> object:
            start = time.perf_counter()
            result = method(*args)
            self.seconds += time.perf_counter() - start
            return result

        return timed


def milliseconds(seconds: list[float]) -> float:
    return round(statistics.median(seconds) * 1e3, 3)


def time_runner(core: EngineCore, run_seconds: list[float]) -> None:
    """Append to ``run_seconds`` what the worker's runner takes around the model, step by step."""
    runner = core._executor._worker.runner  # type: ignore[attr-defined]
    model = TimedModel(runner.model)
    runner._forward._model = runner._sampler._model = model
    backends = runner._forward._backends
    backend = backends[0] = TimedModel(backends[0])
    run = runner.run

    def timed_run(plan: object) -> object:
        model.seconds = backend.seconds = 0.0
        start = time.perf_counter()
        result = run(plan)
        run_seconds.append(time.perf_counter() - start - model.seconds - backend.seconds)
        return result

    runner.run = timed_run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--sampled", action="store_true", help="random draws and stop tokens")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make_random_model(
            folder,
            hidden_size=128,
            intermediate_size=256,
            num_layers=1,
            num_heads=2,
            num_kv_heads=1,
            vocab_size=512,
            max_position_embeddings=1024,
        )
        dtype = "float32" if args.device == "cpu" else "bfloat16"
        config = EngineConfig(
            model=ModelConfig(model=folder, dtype=dtype, num_threads=1, device=args.device),
            cache=CacheConfig(enable_prefix_caching=True),
            scheduler=SchedulerConfig(max_num_seqs=args.rows),
        )
        core = EngineCore(config, PluginHost.discover())
        run_seconds: list[float] = []
        if args.device == "cpu":
            time_runner(core, run_seconds)
        outputs = OutputProcessor(None)
        params = SamplingParams(
            temperature=0.0, max_tokens=900, ignore_eos=True, detokenize=False, output_kind="final"
        )
        requests = [
            EngineRequest(
                request_id=str(row),
                sequences=(row,),
                prompt_token_ids=list(range(10, 26)),
                sampling=TokenSampling(
                    seed=row, max_tokens=900, **(SAMPLED if args.sampled else GREEDY)
                ),
            )
            for row in range(args.rows)
        ]
        for request in requests:
            outputs.add(request, params, None, time.monotonic())
        core.add(requests)
        for _ in range(20):
            core.step()
        run_seconds.clear()
        engine, client, whole = [], [], []
        for _ in range(args.steps):
            began, start = time.perf_counter(), time.thread_time()
            step = core.step()
            middle, stepped = time.thread_time(), time.perf_counter()
            outputs.process(step)
            engine.append(middle - start)
            client.append(time.thread_time() - middle)
            whole.append(stepped - began)
            assert len(step.tokens) == args.rows
        core.close()
    print(
        json.dumps(
            {
                "rows": args.rows,
                "engine_ms": milliseconds(engine),
                "engine_mean_ms": round(statistics.mean(engine) * 1e3, 3),
                "client_ms": milliseconds(client),
                "step_ms": milliseconds(whole),
                "runner_ms": round(statistics.median(run_seconds) * 1e3, 3)
                if run_seconds
                else None,
            }
        )
    )


if __name__ == "__main__":
    main()
