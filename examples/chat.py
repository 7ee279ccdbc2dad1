"""A conversation of several turns; the prefix cache keeps what was said before."""

from octavo import LLM, SamplingParams

QUESTIONS = ["Hello!", "What is the capital of Italy?", "Thank you!"]
PARAMS = SamplingParams(temperature=0.0, max_tokens=64)

with LLM("octavo/tiny") as llm:
    messages = []
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        (output,) = llm.chat(messages, PARAMS, use_tqdm=False)
        answer = output.outputs[0].text
        messages.append({"role": "assistant", "content": answer})
        cached, asked = output.metrics.num_cached_tokens, len(output.prompt_token_ids)
        print(f"> {question}\n{answer}\n[{cached} of {asked} prompt tokens were cached]")
