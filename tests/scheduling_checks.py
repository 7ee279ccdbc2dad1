"""What holds of a step's outputs, and what they show."""

from __future__ import annotations

from collections.abc import Iterator

from octavo.messages import EngineRequest, StepOutputs


def check_logprobs(
    outputs: StepOutputs, requests: dict[int, EngineRequest], got: dict[int, list[int]]
) -> None:
    """Each names its token, and where that stands."""
    for sequence, tokens in outputs.by_sequence():
        wanted = requests[sequence].sampling.logprobs
        entries = outputs.logprobs.get(sequence, [])
        assert len(entries) == (len(tokens) if wanted >= 0 else 0)
        known = len(requests[sequence].prompt_token_ids) + len(got[sequence])
        for place, entry in enumerate(entries):
            assert entry.token_ids == [tokens[place] + i for i in range(wanted + 1)]
            assert entry.rank == known + place
    for report in outputs.prompts:
        prompt = requests[report.sequence].prompt_token_ids
        wanted = requests[report.sequence].sampling.prompt_logprobs
        if wanted < 0:
            assert not report.logprobs
            continue
        assert [entry.token_ids[0] for entry in report.logprobs] == prompt[1:]
        assert [entry.rank for entry in report.logprobs] == list(range(1, len(prompt)))
        assert all(len(entry.logprobs) == wanted + 1 for entry in report.logprobs)


def burst_facts(given: dict[int, int], outputs: StepOutputs) -> Iterator[str]:
    """What became of the tokens that sequences were given by a step."""
    told = {sequence: len(tokens) for sequence, tokens in outputs.by_sequence()}
    for sequence, count in given.items():
        if count == 0:
            yield "yielded none"
        elif told.get(sequence, 0) > 1:
            yield "bursts"
    for end in outputs.ends:
        if told.get(end.sequence, 0) < given.get(end.sequence, 0):
            yield "cut by a guide's end" if end.is_text else "cut by a stop id"
