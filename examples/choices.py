"""More than one answer: continuations, log probabilities, beam search."""

from octavo import LLM, BeamSearchParams, SamplingParams

PROMPT = "The capital of France is"

with LLM("octavo/tiny") as llm:
    several = SamplingParams(n=3, temperature=1.0, seed=7, max_tokens=12)
    (output,) = llm.generate(PROMPT, several)
    for completion in output.outputs:  # they share the prompt's blocks in the cache
        print(completion.index, repr(completion.text))

    (output,) = llm.generate(PROMPT, SamplingParams(temperature=0.0, max_tokens=4, logprobs=3))
    for likeliest in output.outputs[0].logprobs:
        print({entry.decoded_token: round(entry.logprob, 2) for entry in likeliest.values()})

    (beams,) = llm.beam_search(PROMPT, BeamSearchParams(beam_width=3, max_tokens=8))
    for beam in beams.sequences:
        print(round(beam.cumulative_logprob, 2), repr(beam.text))
