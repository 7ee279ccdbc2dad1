"""A plugin of one's own: it is told of every request that ends, and counts tokens by user."""

from collections import Counter

from octavo import LLM, SamplingParams
from octavo_registry import RequestOutcome, hookimpl


class Meter:
    OCTAVO_API = "1"

    def __init__(self) -> None:
        self.tokens = Counter()

    @hookimpl
    def request_finished(self, outcome: RequestOutcome) -> None:
        self.tokens[outcome.extra_args["user"]] += outcome.num_output_tokens


meter = Meter()
with LLM("octavo/tiny", plugins=[meter]) as llm:
    params = [SamplingParams(max_tokens=8, extra_args={"user": u}) for u in ("ada", "alan", "ada")]
    llm.generate(["Once upon a time"] * 3, params)
print(dict(meter.tokens))
