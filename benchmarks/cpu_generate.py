"""Octavo against transformers' generate on a CPU: python -m benchmarks.cpu_generate

A Llama shape of about 100M parameters, random weights, float32, greedy, two threads, in one run on
one machine and in turns (A B B A): read the ratios, not the times. Transformers gets static batches
of 8, which finish with their longest request; tokens beyond what a request asked for don't count.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time

import torch

from octavo import LLM, SamplingParams
from octavo.testing.random_model import make_random_model

SHAPE = {
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
}


def make_requests(count: int, vocab_size: int) -> list[tuple[list[int], int]]:
    """Prompts of 16 to 256 tokens, outputs of 16 to 192."""
    rng = random.Random(0)
    return [
        ([rng.randrange(10, vocab_size) for _ in range(rng.randint(16, 256))], rng.randint(16, 192))
        for _ in range(count)
    ]


class Octavo:
    name = "octavo"

    def __init__(self, folder: str, threads: int) -> None:
        self.llm = LLM(
            folder,
            dtype="float32",
            num_threads=threads,
            enable_prefix_caching=False,
            max_num_seqs=32,
            max_model_len=2048,
            skip_tokenizer_init=True,
        )

    def run(self, requests: list[tuple[list[int], int]]) -> None:
        params = [
            SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True, detokenize=False)
            for _, n in requests
        ]
        prompts = [{"prompt_token_ids": ids} for ids, _ in requests]
        outputs = self.llm.generate(prompts, params, use_tqdm=False)
        for output, (_, n) in zip(outputs, requests, strict=True):
            assert len(output.outputs[0].token_ids) == n


class Transformers:
    name = "transformers"

    def __init__(self, folder: str, threads: int, batch: int) -> None:
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(threads)
        self.batch = batch
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.inference_mode()
    def run(self, requests: list[tuple[list[int], int]]) -> None:
        for start in range(0, len(requests), self.batch):
            part = requests[start : start + self.batch]
            longest = max(len(ids) for ids, _ in part)
            ids = torch.zeros(len(part), longest, dtype=torch.long)
            mask = torch.zeros(len(part), longest, dtype=torch.long)
            for row, (prompt, _) in enumerate(part):  # padded on the left, as it wants
                ids[row, longest - len(prompt) :] = torch.tensor(prompt)
                mask[row, longest - len(prompt) :] = 1
            steps = max(n for _, n in part)
            self.model.generate(
                input_ids=ids,
                attention_mask=mask,
                do_sample=False,
                max_new_tokens=steps,
                min_new_tokens=steps,
                eos_token_id=None,
                pad_token_id=0,
            )


def measure(
    engines: list[Octavo | Transformers], requests: list[tuple[list[int], int]], rounds: int
) -> dict[str, list[float]]:
    """Seconds by engine, the engines in turns."""
    seconds: dict[str, list[float]] = {engine.name: [] for engine in engines}
    for engine in engines:
        engine.run(requests[:2])
    for turn in range(rounds):
        for engine in engines if turn % 2 == 0 else engines[::-1]:
            start = time.perf_counter()
            engine.run(requests)
            seconds[engine.name].append(time.perf_counter() - start)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=32)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make_random_model(folder, **SHAPE)
        ours = Octavo(folder, args.threads)
        theirs = Transformers(folder, args.threads, batch=8)
        single = [(make_requests(1, 32000)[0][0][:64], 64)]
        for name, requests in (("batch 1", single), ("mixed", make_requests(args.requests, 32000))):
            tokens = sum(n for _, n in requests)
            seconds = measure([ours, theirs], requests, args.rounds)
            median = {engine: statistics.median(values) for engine, values in seconds.items()}
            ratio = median["transformers"] / median["octavo"]
            print(
                json.dumps(
                    {
                        "workload": name,
                        "requests": len(requests),
                        "tokens": tokens,
                        "seconds": seconds,
                        "times_as_fast": round(ratio, 3),
                    }
                )
            )
        ours.llm.close()


if __name__ == "__main__":
    main()
