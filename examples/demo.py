"""Octavo at work on a small random model: what it says is noise, how it runs is real."""

from __future__ import annotations

import asyncio
import tempfile
import time

from octavo import LLM, AsyncLLM, BeamSearchParams, SamplingParams
from octavo.testing.random_model import make_random_model

QUESTIONS = ["The capital of France is", "Once upon a time", "To be or not to be,"]


def show(title: str) -> None:
    print(f"\n== {title}")


def offline(folder: str) -> None:
    show("LLM.generate: a batch of 96 requests of mixed lengths and parameters")
    with LLM(folder, dtype="float32", max_num_seqs=32) as llm:
        params = [
            SamplingParams(temperature=0.0 if i % 2 else 0.8, seed=i, max_tokens=8 + i % 48)
            for i in range(96)
        ]
        outputs = llm.generate(QUESTIONS * 32, params)
        for output in outputs[:3]:
            print(repr(output.prompt), "->", repr(output.outputs[0].text[:60]))

        show("n=3: continuations share the prompt's blocks, each has its own seed")
        (output,) = llm.generate(QUESTIONS[0], SamplingParams(n=3, seed=1, max_tokens=12))
        for completion in output.outputs:
            print(completion.index, repr(completion.text))

        show("LLM.beam_search")
        (beams,) = llm.beam_search(QUESTIONS[1], BeamSearchParams(beam_width=3, max_tokens=8))
        for beam in beams.sequences:
            print(f"{beam.cumulative_logprob:8.3f}", repr(beam.text))

        show("the prefix cache: the same long prompt twice")
        prompt = {"prompt_token_ids": [7 + i % 200 for i in range(1900)]}
        for attempt in ("first", "again"):
            start = time.perf_counter()
            (output,) = llm.generate(prompt, SamplingParams(max_tokens=1), use_tqdm=False)
            milliseconds = (time.perf_counter() - start) * 1e3
            cached = output.metrics.num_cached_tokens
            print(f"{attempt}: {cached} of 1900 prompt tokens cached, {milliseconds:.1f} ms")


async def streaming(folder: str) -> None:
    show("AsyncLLM: two chats streamed at once from an engine process")
    async with AsyncLLM(folder, dtype="float32") as llm:

        async def chat(name: str) -> None:
            messages = [{"role": "user", "content": f"Hello, I am {name}."}]
            params = SamplingParams(max_tokens=12, seed=len(name), output_kind="delta")
            async for output in llm.chat(messages, params):
                print(f"[{name}] {output.outputs[0].text!r}")

        await asyncio.gather(chat("Ada"), chat("Grace"))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        make_random_model(folder, max_position_embeddings=2048)
        offline(folder)
        asyncio.run(streaming(folder))
    show("next: octavo plugin list, octavo plugin new model my_model, README.md")


if __name__ == "__main__":
    main()
