"""A client of `octavo serve octavo/tiny`: the openai package as it is, with another URL."""

from openai import OpenAI

client = OpenAI(base_url="http://localhost:8000/v1", api_key="none")  # pip install openai
stream = client.chat.completions.create(
    model="octavo/tiny",
    messages=[{"role": "user", "content": "What is the capital of Italy?"}],
    temperature=0,
    stream=True,
)
for chunk in stream:
    print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
