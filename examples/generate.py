"""Offline: all prompts in, all texts out. They run together, each with its own parameters."""

from octavo import LLM, SamplingParams

PROMPTS = [
    "The capital of France is",
    {"prompt": "The capital of Japan is"},  # or {"prompt_token_ids": [...]}
    "Once upon a time",
]
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=16, stop=["."], include_stop_str_in_output=True),
    SamplingParams(temperature=0.0, max_tokens=16, stop=["."]),
    SamplingParams(temperature=0.8, top_p=0.95, seed=1, max_tokens=32),
]

with LLM("octavo/tiny") as llm:  # a folder, or a name that a source knows
    for output in llm.generate(PROMPTS, PARAMS):
        completion = output.outputs[0]
        print(repr(output.prompt), "->", repr(completion.text), completion.finish_reason)
