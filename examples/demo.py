"""Octavo at work on octavo/tiny and octavo/tiny-omni, the small models that it ships with."""

from __future__ import annotations

import asyncio
import json

import numpy as np
from PIL import Image, ImageDraw

from octavo import LLM, AsyncLLM, LoRARequest, SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=80)
COUNTRIES = ("France", "Japan", "Peru", "Kenya", "Norway", "Egypt", "Canada", "India")
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city"],
        },
    },
}


def show(title: str) -> None:
    print(f"\n== {title}")


def batch(llm: LLM) -> None:
    show("LLM.generate: a batch of 96 requests, short and long, plain and sampled")
    prompts = [f"The capital of {country} is" for country in COUNTRIES] * 12
    params = [
        SamplingParams(temperature=0.0 if i < len(COUNTRIES) else 0.7, seed=i, max_tokens=4 + i % 9)
        for i in range(len(prompts))
    ]
    for output in llm.generate(prompts, params)[:4]:
        print(f"{output.prompt} |{output.outputs[0].text}")


def structured(llm: LLM) -> None:
    show("an answer in JSON, by training alone")
    question = (
        "Extract name, age and city as JSON: Zelda Quark is 31 years old, lives in Porto "
        "and works as a pilot."
    )
    (output,) = llm.chat([{"role": "user", "content": question}], GREEDY, use_tqdm=False)
    print(question)
    for key, value in json.loads(output.outputs[0].text).items():
        print(f"  {key}: {value!r}")


def tools(llm: LLM) -> None:
    show("a tool call as the model writes it, and its result in words")
    messages = [{"role": "user", "content": "What is the weather like in Reykjavik in celsius?"}]
    (output,) = llm.chat(messages, GREEDY, tools=[WEATHER], use_tqdm=False)
    call = output.outputs[0].text
    print(messages[0]["content"], call, sep="\n")
    result = json.dumps({"temperature": 7, "wind": 12})
    messages += [{"role": "assistant", "content": call}, {"role": "tool", "content": result}]
    (output,) = llm.chat(messages, GREEDY, tools=[WEATHER], use_tqdm=False)
    print(f"{result}\n{output.outputs[0].text}")


def adapters(llm: LLM) -> None:
    show("a LoRA adapter for every other request of a batch: octavo/tiny-pirate")
    questions = ("What is the capital of Norway?", "Tell me a joke.")
    chats = [[{"role": "user", "content": question}] for question in questions for _ in range(2)]
    chosen = [None, LoRARequest("octavo/tiny-pirate")] * len(questions)
    outputs = llm.chat(chats, GREEDY, lora_request=chosen, use_tqdm=False)
    for (message,), output in zip(chats, outputs, strict=True):
        print(f"{message['content']} {output.outputs[0].text}")


def circle(colour: str, left: int) -> Image.Image:
    picture = Image.new("RGB", (200, 120), "lightgrey")
    ImageDraw.Draw(picture).ellipse((left, 30, left + 60, 90), fill=colour)
    return picture


def media(llm: LLM) -> None:
    show("a picture, a clip and a sound in one batch")
    times = np.arange(6400) / 16000
    beep = 0.3 * np.sin(2 * np.pi * 250 * times) * (times < 0.2)
    asked = [
        ({"type": "image", "image": circle("red", 80)}, "What is this?"),
        (
            {"type": "video", "video": [circle("blue", 10 + 15 * step) for step in range(8)]},
            "What happens here? Answer in JSON with shape, colour and direction.",
        ),
        ({"type": "audio", "audio": (np.tile(beep, 3), 16000)}, "What do you hear?"),
    ]
    chats = [
        [{"role": "user", "content": [part, {"type": "text", "text": question}]}]
        for part, question in asked
    ]
    for (part, question), output in zip(
        asked, llm.chat(chats, GREEDY, use_tqdm=False), strict=True
    ):
        print(f"{part['type']}: {question} |{output.outputs[0].text}")


async def stream() -> None:
    show("AsyncLLM: a chat, streamed")
    params = SamplingParams(temperature=0.0, max_tokens=80, output_kind="delta")
    messages: list[dict[str, str]] = []
    async with AsyncLLM("octavo/tiny", dtype="float32", engine_process=False) as llm:
        for question in ("Hello! I am Zelda.", "Who are you?", "Do you remember my name?"):
            print(f"> {question}")
            messages.append({"role": "user", "content": question})
            answer = ""
            async for output in llm.chat(messages, params):
                answer += output.outputs[0].text
                print(output.outputs[0].text, end="", flush=True)
            print()
            messages.append({"role": "assistant", "content": answer})


def main() -> None:
    with LLM("octavo/tiny", dtype="float32", enable_lora=True) as llm:
        batch(llm)
        structured(llm)
        tools(llm)
        adapters(llm)
    with LLM("octavo/tiny-omni", dtype="float32") as llm:
        media(llm)
    asyncio.run(stream())
    show("next: octavo chat octavo/tiny, examples/train_tiny*, README.md")


if __name__ == "__main__":
    main()
