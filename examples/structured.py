"""Structured output: a text is a choice, a pattern or JSON, whatever the model would rather say."""

from octavo import LLM, GuidedParams, SamplingParams

CAPITAL = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome", "Madrid"]}, "people": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
CONSTRAINTS = [
    GuidedParams(choice=["Paris", "Rome", "Madrid"]),
    GuidedParams(regex="[A-Z][a-z]{3,5}"),
    GuidedParams(json=CAPITAL),  # or a Pydantic class, a dataclass, JSON text
]
PARAMS = [SamplingParams(temperature=0.0, max_tokens=64, guided=each) for each in CONSTRAINTS]

with LLM("octavo/tiny") as llm:
    for output in llm.generate(["The capital of Italy is "] * len(PARAMS), PARAMS):
        print(output.outputs[0].text, "by", output.guided.backend)
