"""Tokenizers with control tokens, templates that write them, and what a chat's ids have of them."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tokenizers import AddedToken

import sample_tokenizers
from octavo.inputs import ChatRenderer, Conversation, InputProcessor
from octavo_plugins.tokenizers.transformers.tokenizer import TransformersTokenizer

KINDS = ("byte_level", "metaspace", "sentencepiece", "unigram", "wordpiece")
SPECIAL = ("<|im_start|>", "<|im_end|>", "<|image|>", "[INST]", "[/INST]", "<s>", "</s>", "<pad>")
WRITTEN = ("<think>", "</think>", "<tool_call>", "</tool_call>")
"""Not special, but the template writes them."""
TABLE = "<table>"
"""An added token of texts, which no template writes."""
CHATML = (
    "{{ bos_token }}{% if tools %}<|im_start|>system\n{{ tools | tojson }}<tool_call>"
    "</tool_call><|im_end|>\n{% endif %}{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.reasoning_content is defined %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{% if m.content is string %}{% if m.role == 'assistant' %}"
    "{{ m.content.split('</think>')[-1] | trim }}{% else %}{{ m.content }}{% endif %}{% else %}"
    "{% for part in m.content or [] %}{{ part.text or '<|image|>' }}{% endfor %}{% endif %}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function.name }} "
    "{{ call.function.arguments | tojson(ensure_ascii=True) }}</tool_call>{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endfor %}{% for d in documents or [] %}{{ d.text }}{% endfor %}"
    "{{ note or '' }}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA2 = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token + '[INST] ' + m.content | trim "
    "+ ' [/INST]' }}{% else %}{{ ' ' + m.content + ' ' + eos_token }}{% endif %}{% endfor %}"
)
BARE = "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}</s>"
EXAMPLES = Path(__file__).parents[1] / "examples" / "chat_templates"
TEMPLATES = {"chatml": CHATML, "llama2": LLAMA2} | {
    file.stem: file.read_text() for file in sorted(EXAMPLES.glob("*.jinja"))
}


@cache
def tokenizer(kind: str) -> TransformersTokenizer:
    tokens = [AddedToken(text, normalized=False, special=True) for text in SPECIAL[:-3]]
    tokens += [AddedToken(text, normalized=kind == "metaspace") for text in (*WRITTEN, TABLE)]
    with TemporaryDirectory() as folder:
        sample_tokenizers.save(kind, Path(folder), added=tokens)
        return sample_tokenizers.open_folder(Path(folder))


def ids_of(
    kind: str, messages: list[dict[str, Any]], template: str = CHATML, **options: Any
) -> list[int]:
    renderer = renderer_of(kind, template, options.pop("trust_message_tokens", False))
    chat = renderer.render(Conversation(messages=copy.deepcopy(messages), **options))
    processor = InputProcessor(tokenizer(kind), max_model_len=10_000, vocab_size=1000)
    return processor.encode_chat(chat)


@cache
def renderer_of(kind: str, template: str, trust_message_tokens: bool = False) -> ChatRenderer:
    return ChatRenderer(
        tokenizer(kind), chat_template=template, trust_message_tokens=trust_message_tokens
    )


def controls_in(kind: str, ids: list[int]) -> list[str]:
    made = tokenizer(kind)
    return [text for text in made.convert_ids_to_tokens(ids) if text in (*SPECIAL, *WRITTEN)]
