"""Host work of a steady step: python -m benchmarks.host_work

256 greedy rows of a one-layer model. Counted is what the host does besides the model: the CPU time
of the engine's thread (planning, packing, reading results, telling the client) and, apart from it,
the time in the worker's runner around the model's forward, logits and attention plan.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time

from octavo import SamplingParams
from octavo.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from octavo.detokenizing import OutputProcessor
from octavo.engine.core import EngineCore
from octavo.engine.messages import EngineRequest, TokenSampling
from octavo.testing.random_model import make_random_model
from octavo_registry import PluginHost

ROWS = 256


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make_random_model(
            folder,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            vocab_size=512,
            max_position_embeddings=1024,
        )
        config = EngineConfig(
            model=ModelConfig(model=folder, dtype="float32", num_threads=1),
            cache=CacheConfig(enable_prefix_caching=True),
            scheduler=SchedulerConfig(max_num_seqs=ROWS),
        )
        core = EngineCore(config, PluginHost.discover())
        runner = core._executor._worker.runner  # type: ignore[attr-defined]
        model = runner.model = TimedModel(runner.model)
        backend = TimedModel(runner._backends[0])
        runner._backends[0] = backend
        run_seconds: list[float] = []
        run = runner.run

        def timed_run(plan: object) -> object:
            model.seconds = backend.seconds = 0.0
            start = time.perf_counter()
            result = run(plan)
            run_seconds.append(time.perf_counter() - start - model.seconds - backend.seconds)
            return result

        runner.run = timed_run
        outputs = OutputProcessor(None)
        params = SamplingParams(
            temperature=0.0, max_tokens=900, ignore_eos=True, detokenize=False, output_kind="final"
        )
        requests = [
            EngineRequest(
                request_id=str(row),
                sequences=(row,),
                prompt_token_ids=list(range(10, 26)),
                sampling=TokenSampling(seed=row, temperature=0.0, max_tokens=900),
            )
            for row in range(ROWS)
        ]
        for request in requests:
            outputs.add(request, params, None, time.monotonic())
        core.add(requests)
        for _ in range(20):
            core.step()
        run_seconds.clear()
        engine, client = [], []
        for _ in range(args.steps):
            start = time.thread_time()
            step = core.step()
            middle = time.thread_time()
            outputs.process(step)
            engine.append(middle - start)
            client.append(time.thread_time() - middle)
            assert len(step.tokens) == ROWS
        core.close()
    print(
        json.dumps(
            {
                "rows": ROWS,
                "engine_ms": round(statistics.median(engine) * 1e3, 3),
                "client_ms": round(statistics.median(client) * 1e3, 3),
                "runner_ms": round(statistics.median(run_seconds) * 1e3, 3),
            }
        )
    )


if __name__ == "__main__":
    main()
