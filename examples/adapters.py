"""A LoRA adapter, chosen request by request: the model and a pirate answer in one batch."""

from octavo import LLM, LoRARequest, SamplingParams

PIRATE = LoRARequest("octavo/tiny-pirate")  # comes with Octavo; yours: give a lora_path, too
QUESTIONS = ["Who are you?", "What is the capital of Italy?", "What is 3 plus 4?"]
PARAMS = SamplingParams(temperature=0.0, max_tokens=64)

with LLM("octavo/tiny", enable_lora=True) as llm:
    chats = [[{"role": "user", "content": question}] for question in QUESTIONS for _ in range(2)]
    adapters = [None, PIRATE] * len(QUESTIONS)
    outputs = llm.chat(chats, PARAMS, lora_request=adapters, use_tqdm=False)
    for chat, adapter, output in zip(chats, adapters, outputs, strict=True):
        print("pirate" if adapter else "> " + chat[0]["content"] + "\nmodel ", end=": ")
        print(output.outputs[0].text)
