"""Rendered chats equal those of transformers, on templates written like the public ones."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import transformers

import sample_tokenizers
from octavo.errors import PromptError
from octavo.inputs import ChatRenderer
from rendered_chats import rendered

CHATML = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- '# Tools\\n<tools>' }}
    {%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last_query=0) %}
{%- for message in messages[::-1] %}
    {%- if message.role == 'user' %}
        {%- set ns.last_query = messages|length - 1 - loop.index0 %}
        {%- break %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'system' and tools %}{%- continue %}{%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.reasoning_content is defined and loop.index0 > ns.last_query %}
        {{- '<think>' + message.reasoning_content + '</think>' }}
    {%- endif %}
    {%- generation %}
    {%- if message.content %}{{- message.content }}{%- endif %}
    {%- for call in message.tool_calls or [] %}
        {{- '<tool_call>' + (call.function | tojson) + '</tool_call>' }}
    {%- endfor %}
    {%- endgeneration %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}{{- '<think></think>' }}{%- endif %}
{%- endif %}
"""

LLAMA3 = """\
{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = strftime_now("%d %b %Y") %}
{%- endif %}
{{- "<|header|>system<|end|>Today: " + date_string + "\\n<|eot|>" }}
{%- for message in messages %}
    {%- if 'tool_calls' in message and message.tool_calls %}
        {%- if message.tool_calls|length != 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|header|>assistant<|end|>{"name": "' + call.name + '", "parameters": ' }}
        {{- call.arguments | tojson }}
        {{- "}<|eot|>" }}
    {%- elif message.role == "tool" %}
        {{- "<|header|>ipython<|end|>" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot|>" }}
    {%- else %}
        {{- '<|header|>' + message['role'] + '<|end|>' + message['content'] | trim + '<|eot|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|header|>assistant<|end|>' }}{%- endif %}
"""

MISTRAL = """\
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in loop_messages | selectattr("role", "in", ["user", "assistant"]) %}
    {%- if (message["role"] == "user") != (loop.index0 % 2 == 0) %}
        {{- raise_exception("Roles must alternate user/assistant/...") }}
    {%- endif %}
{%- endfor %}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and loop.last %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {{- tool | tojson(indent=2) }}{{- ", " if not loop.last else "]" }}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] " + (message.tool_calls | map(attribute="function") | list | tojson) }}
        {{- eos_token }}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"] | trim + eos_token }}
    {%- elif message["role"] == "tool" %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content|string + "}[/TOOL_RESULTS]" }}
    {%- endif %}
{%- endfor %}
"""

PARTS = """\
{% for message in messages %}
{{ '<' + message['role'] + '>' }}{% for part in message['content'] if part['type'] == 'text' %}
{{ part['text'] }}{% endfor %}
</end>
{% endfor %}
{% for document in documents or [] %}{{ document['title'] }}: {{ document['text'] }}
{% endfor %}
"""

TEMPLATES = {"chatml": CHATML, "llama3": LLAMA3, "mistral": MISTRAL}

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Das Wetter in <Zürich> & 'Umgebung'",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "weather", "arguments": {"city": "Zürich"}},
}
USER = {"role": "user", "content": "  Wie ist das <Wetter>? "}
CHATS: dict[str, list[dict[str, Any]]] = {
    "one turn": [USER],
    "system": [{"role": "system", "content": "Be brief."}, USER],
    "two turns": [
        USER,
        {"role": "assistant", "content": "Gut. "},
        {"role": "user", "content": "?"},
    ],
    "tool turn": [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "21 °C", "tool_call_id": "c1"},
    ],
}

# Releases before it drop a message's "reasoning" and leave a marker in continued typed parts.
RECENT = tuple(map(int, transformers.__version__.split(".")[:2])) >= (5, 23)
if RECENT:
    CHATS["reasoning"] = [USER, {"role": "assistant", "content": "Gut.", "reasoning": "hmm"}]


def render_both(template: str, messages: list[dict[str, Any]], **options: Any) -> tuple[str, str]:
    """Ours and that of transformers."""
    tokenizer = sample_tokenizers.load("byte_level")
    ours = rendered(
        ChatRenderer(tokenizer, chat_template=template),
        copy.deepcopy(messages),
        tools=options.get("tools"),
        documents=options.get("documents"),
        add_generation_prompt=options.get("add_generation_prompt", False),
        continue_final_message=options.get("continue_final_message", False),
        chat_template_kwargs=options.get("kwargs"),
    )
    kwargs = options.pop("kwargs", {})
    theirs = tokenizer.hf.apply_chat_template(
        copy.deepcopy(messages), chat_template=template, tokenize=False, **options, **kwargs
    )
    return ours, theirs


@pytest.mark.parametrize("add_generation_prompt", [False, True])
@pytest.mark.parametrize("tools", [None, [TOOL], [TOOL, TOOL]])
@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_chats_equal(
    name: str, chat: str, tools: list[dict[str, Any]] | None, add_generation_prompt: bool
) -> None:
    ours, theirs = render_both(
        TEMPLATES[name], CHATS[chat], tools=tools, add_generation_prompt=add_generation_prompt
    )
    assert ours == theirs


@pytest.mark.parametrize("kwargs", [{"enable_thinking": False}, {"date_string": "1 Jan 1450"}])
@pytest.mark.parametrize("name", TEMPLATES)
def test_template_kwargs_equal(name: str, kwargs: dict[str, Any]) -> None:
    ours, theirs = render_both(TEMPLATES[name], [USER], kwargs=kwargs, add_generation_prompt=True)
    assert ours == theirs


@pytest.mark.parametrize("text", ["Das Wetter", "Das Wetter ", "Wie ist das <Wetter>?", "\n a \n"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_continued_messages_equal(name: str, text: str) -> None:
    chat = [USER, {"role": "assistant", "content": text}]
    ours, theirs = render_both(TEMPLATES[name], chat, continue_final_message=True)
    assert ours == theirs


def test_parts_and_documents_equal() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    chat = [{"role": "user", "content": parts}, {"role": "assistant", "content": parts[:1]}]
    documents = [{"title": "T", "text": "body"}]
    for options in ({"documents": documents}, {"continue_final_message": True})[: 1 + RECENT]:
        ours, theirs = render_both(PARTS, chat, **options)
        assert ours == theirs


@pytest.mark.parametrize("name", ["llama3", "mistral"])
def test_what_a_template_refuses_is_said_in_its_words(name: str) -> None:
    chat = [
        USER,
        {"role": "user", "content": "again"},
        {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]},
    ]
    with pytest.raises(PromptError, match=r"single tool-calls at once!|Roles must alternate"):
        rendered(
            ChatRenderer(None, chat_template=TEMPLATES[name]),
            chat,
            chat_template_kwargs={"bos_token": ""},
        )
