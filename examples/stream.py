"""Streaming: one async generator a request, the engine in a process of its own."""

import asyncio

from octavo import AsyncLLM, SamplingParams


async def ask(llm: AsyncLLM, question: str) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=32, output_kind="delta")
    messages = [{"role": "user", "content": question}]
    async for output in llm.chat(messages, params):  # leaving the loop ends the request
        print(f"{question} {output.outputs[0].text!r}")


async def main() -> None:
    async with AsyncLLM("octavo/tiny") as llm:
        await asyncio.gather(ask(llm, "How are you?"), ask(llm, "What is the capital of Spain?"))


asyncio.run(main())
