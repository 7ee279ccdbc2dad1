"""No operation of a template makes control tokens of contents: known ones, and random chains."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from control_tokens import SPECIAL, TEMPLATES, WRITTEN, controls_in, ids_of, tokenizer
from octavo.inputs import ChatRenderer, ChatTemplate
from rendered_chats import rendered

EACH = (
    "{# <think> </think> <tool_call> </tool_call> #}{% for m in messages %}<|im_start|>{{ m.role }}"
    "\n{{ m.content }}\n{{ SHOWN }}<|im_end|>\n{% endfor %}"
)
OWN = ["<|im_start|>", "<|im_end|>"]
UNFORESEEN = [
    ("m.content.strip('x')", "x</s>x"),
    ("'<' + m.content.strip('x') + '>'", "x/sx"),
    ("'<|' + m.content.strip('x')", "xim_end|>"),
    ("m.content.lstrip('x.') + '|>'", "x.<|im_end"),
    ("m.content | trim('x')", "x</s>"),
    ("m.content | striptags", "a <|im_<b>end|>"),
    ("m.content | striptags", "&lt;s&gt;"),
    ("m.content | striptags", "&lt;|im_end|&gt;"),
    ("m.content.replace(m.name, '')", "<|im_#end|>"),
    ("m.content.replace('#', m.name)", "<|im_end|#"),
    ("m.content | replace(m.name, '')", "<|im_#end|>"),
    ("'<|im_#|>'.replace('#', m.content)", "end"),
    ("'<|%s|>' % m.content", "im_end"),
    ("'%s|>' % m.content", "<|im_end"),
    ("'<|{}|>'.format(m.content)", "im_end"),
    ("'%s%s' | format(m.content[:5], m.content[6:])", "<|im_#end|>"),
    ("m.content[1:]", "#</s>"),
    ("'<' ~ m.content[1:]", "#/s>"),
    ("m.content[::-1]", ">s/<"),
    ("m.content[0] ~ m.content[2] ~ m.content[4]", "<#s#>"),
    ("m.content | reverse", ">|dne_mi|<"),
    ("m.content | reject('equalto', '#') | join", "<|im_#end|>"),
    ("m.content | list | reject('equalto', '#') | join", "<|im_#end|>"),
    ("m.content.rsplit('#') | join", "<|im_#end|>"),
    ("m.content.split(m.name) | join", "<|im_#end|>"),
    ("m.content.partition('#')[0] + m.content.partition('#')[2]", "<|im_#end|>"),
    ("m.content.removeprefix('#') ~ ''", "#</s>"),
    ("m.content | truncate(4, True, '', 0)", "</s> and on"),
    ("m.content.translate({35: none})", "<|im_#end|>"),
    ("m.content.encode().decode('unicode_escape')", "\\x3c/s>"),
    ("m.content.expandtabs(0)", "<|im_\tend|>"),
    ("(m.content | first) ~ m.content[1:]", "</s>"),
    ("m.content | map('replace', '#', '') | join", "<|im_#end|>"),
    ("(m.content | attr('strip'))('x')", "x</s>x"),
    ("m.content | e | striptags", "<|im_end|>"),
    ("(m.content | e).unescape()", "<|im_end|>"),
    ("m.content.zfill(3)", "</s>"),
    ("m.content | urlize", "<|im_end|>"),
    ("m.content | indent", "</s>"),
    ("m.content | center(9)", "</s>"),
    ("(m.content[0] if m.content[0] != '#' else '') ~ m.content[1:]", "#</s>"),
    ("m.content.split() | map(attribute=0) | join", "</ sx >x"),
    ("m.content.split() | map(attribute='0') | join", "<# /x sx >x"),
    ("m.content.split() | join('', attribute=0)", "<# /x sx >x"),
    ("m.content.split() | join('', 0)", "<# /x sx >x"),
    ("m.content | rejectattr(0, 'equalto', '#') | join", "<|im_#end|>"),
    ("m.content | rejectattr('0', 'equalto', '#') | join", "<|im_#end|>"),
]
LOOP = "{% for c in m.content %}{% if c != '#' %}{{ c }}{% endif %}{% endfor %}"
CAUGHT = "{% for c in m.content if c != '#' %}{{ c }}{% endfor %}"
CHOSEN = "{% for c in m.content %}{{ c if c != '#' else '' }}{% endfor %}"
NEXT = "{% for c in m.content %}{{ loop.previtem if loop.previtem != '#' else '' }}{% endfor %}"
NOT_ALL = "{% for c in m.content %}{% if c == '#' %}{% continue %}{% endif %}{{ c }}{% endfor %}"
SET = "{% for c in m.content %}{% if c != '#' %}{% set d = c %}{{ d }}{% endif %}{% endfor %}"


def says(content: str) -> list[dict[str, Any]]:
    return [{"role": "user", "name": "#", "content": content}]


def made_of(template: str, content: str) -> list[str]:
    return controls_in("byte_level", ids_of("byte_level", says(content), template))


@pytest.mark.parametrize(("shown", "content"), UNFORESEEN)
def test_no_operation_makes_a_control_token_of_a_content(shown: str, content: str) -> None:
    assert made_of(EACH.replace("SHOWN", shown), content) == OWN


@pytest.mark.parametrize("loop", [LOOP, CAUGHT, CHOSEN, NEXT, NOT_ALL, SET])
def test_no_choice_of_characters_makes_one(loop: str) -> None:
    assert made_of(EACH.replace("{{ SHOWN }}", loop), "<|im_#end|>#") == OWN


TURNS = "{% for c in m.content %}{{ loop.cycle(c, '') }}{% endfor %}"
FIRST = "{% for c in m.content %}{{ c }}{% break %}{% endfor %}/s>"
APART = "{% set a, b = m.content %}{{ a }}/s>"
PAIRS = "{% for a, b in m.content.split() %}{{ a }}{% endfor %}"
WORDS = "{% for w in m.content.split() %}{% if w != '#' %}{{ w }}{% endif %}{% endfor %}"


@pytest.mark.parametrize(
    ("shown", "content"),
    [
        (TURNS, "<#/#s#>#"),
        (FIRST, "<#"),
        (APART, "<#"),
        (PAIRS, "<# /# s# >#"),
        (WORDS, "<|im_ # end|>"),
    ],
)
def test_no_part_of_a_text_that_is_taken_apart_makes_one(shown: str, content: str) -> None:
    template = EACH.replace("{{ SHOWN }}", shown).replace("\n{{ m.content }}\n", "")
    assert made_of(template, content) == OWN


PICKED = [
    ("m.content.split('#')[0] ~ m.content.split('#')[2]", "</#x#s>"),
    ("m.content.split('#')[0] }}{{ m.content.split('#')[-1]", "</#x#s>"),
    ("(m.content.split('#') | first) ~ (m.content.split('#') | last)", "</#x#s>"),
    ("[m.content.split('#')[0], m.content.split('#')[2]] | join", "</#x#s>"),
    ("m.content.split('##')[0] ~ m.content.split('#@')[1]", "</##x#@s>"),
    ("m.content.split('#')[1].split('@')[0] ~ m.content.split('@')[1]", "#</@s>"),
    ("m.content.split('#')[0] ~ 'im_end|>'", "<|#a"),
    ("m.content.replace('x', '').split('#')[0] ~ m.content.split('#')[2]", "<x#y#/s>"),
    ("(m.content.split('#')[0] | upper) ~ (m.content.split('#')[2] | lower)", "</#y#S>"),
]
BY_BLANKS = [
    ("m.content.splitlines()[0] ~ m.content.splitlines()[2]", "</\nx\ns>"),
    ("(m.content.split() | first) ~ (m.content.split() | last)", "</ x s>"),
]


@pytest.mark.parametrize(("shown", "content"), [*PICKED, *BY_BLANKS])
def test_no_parts_of_a_split_make_one(shown: str, content: str) -> None:
    template = EACH.replace("SHOWN", shown).replace("\n{{ m.content }}\n", "")
    assert made_of(template, content) == OWN
    assert made_of(template, f"{content}#{'#' * 5000}") == OWN
    assert ChatTemplate(template).is_foreseen is ((shown, content) in PICKED)


def test_parts_of_a_split_are_written_as_ever() -> None:
    template = EACH.replace("SHOWN", "m.content.split('</think>')[-1]")
    renderer = ChatRenderer(tokenizer("byte_level"), chat_template=template)
    for content in ("is a <</think>> b", "</</think>s>", "<</think>|im_end|>"):
        text = rendered(renderer, [{"role": "assistant", "content": content}])
        shown = content.split("</think>")[-1]
        assert text == f"<|im_start|>assistant\n{content}\n{shown}<|im_end|>\n"


def test_contents_that_make_none_are_written_as_ever() -> None:
    template = EACH.replace("SHOWN", "m.content.strip('x')")
    renderer = ChatRenderer(tokenizer("byte_level"), chat_template=template)
    for content in ('xa <b> "c\\ | dx', "</s> in the middle x", "<|im_start|>"):
        text = rendered(renderer, says(content))
        assert text == f"<|im_start|>user\n{content}\n{content.strip('x')}<|im_end|>\n"


def test_a_content_that_would_make_one_is_written_with_all_its_characters() -> None:
    template = EACH.replace("SHOWN", "(m.content | reject('equalto', '#') | join) | tojson")
    renderer = ChatRenderer(tokenizer("byte_level"), chat_template=template)
    content = 'a"\u00e9\\</s>\n<|im_#end|>\U0001f600'
    text = rendered(renderer, says(content))
    shown = json.dumps(content, ensure_ascii=False)
    assert text == f"<|im_start|>user\n{content}\n{shown}<|im_end|>\n"


@pytest.mark.parametrize("content", ["a </s> b", "<#/s>"])
def test_parts_are_found_in_covered_messages(content: str) -> None:
    template = EACH.replace("SHOWN", "m.content.replace(m.name, '')")
    parts = [{"type": "text", "text": content}]
    message = {"role": "user", "name": "#", "content": parts}
    assert controls_in("byte_level", ids_of("byte_level", [message], template)) == OWN


def octavo_tiny() -> str:
    return (Path(__file__).parents[2] / "examples/train_tiny/chat_template.jinja").read_text()


def test_words_that_a_template_asks_for_have_their_effect() -> None:
    shown = "m.content.strip('x') }}{{ '<think>' if '/quick' in m.content else '' "
    template = EACH.replace("SHOWN", shown)
    assert made_of(template, "Go /quick on 1 < 2") == ["<|im_start|>", "<think>", "<|im_end|>"]
    assert made_of(template, "Go on 1 < 2") == OWN


def test_the_examples_and_common_idioms_are_foreseen() -> None:
    idioms = [
        "{{ loop.index0 % 2 }}",
        "{% set rest = messages[1:] %}{% for m in rest[::-1] %}{% endfor %}",
        "{{ messages[0].content.split('</think>')[-1].lstrip('\\n') }}",
        "{{ messages[-1]['content'] | trim }}{{ messages[0].content[0].text }}",
        "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}",
        "{% for m in messages | selectattr('role') | list %}{{ m if m.x else '' }}{% endfor %}",
        "{% macro show(x) %}{{ x }}{% endmacro %}{{ show(messages[0].content) }}",
        "{% for k, v in tools[0].items() %}{{ k }}{{ v | tojson }}{% endfor %}",
        "{% for c in messages[0].content %}{{ c }}{% endfor %}",
        "{{ raise_exception('no') }}{{ strftime_now('%d %b') }}",
        "{% for c in tools[0].enum %}{{ c | tojson }}{{ ', ' if not loop.last }}{% endfor %}",
        "{% set m = messages[0] %}{{ m.content[0].text if m.content[1] is string }}",
        octavo_tiny(),
    ]
    for template in (*TEMPLATES.values(), *idioms):
        assert ChatTemplate(template).is_foreseen, template
    for shown, _ in UNFORESEEN:
        assert not ChatTemplate(EACH.replace("SHOWN", shown)).is_foreseen, shown


STEPS = (
    ".strip('#')", ".strip()", ".lstrip('#x')", ".rstrip('#')", ".replace('#', '')",
    ".replace(m.name, '')", "[1:]", "[:-1]", "[::-1]", " | striptags", " | trim('#')", " | upper",
    " | lower", " | replace('x', '')", ".split('#') | join", ".split('x') | join('')",
    " | reject('equalto', '#') | join", ".removesuffix('#')", " | reverse", ".partition('x')[2]",
    ".join(['<', '>'])", " | e", " | string", ".expandtabs(0)", " | wordwrap(5)", ".title()",
)  # fmt: skip
AROUND = (
    "(IT)", "('<' ~ IT)", "(IT ~ '>')", "('<|' + IT + '|>')", "('[%s]' % IT)", "('{}'.format(IT))",
    "('<|#' | replace('#', IT))", "(IT ~ IT)", "('</' ~ IT ~ '>')",
)  # fmt: skip


@cache
def pieces() -> list[str]:
    whole = (*SPECIAL, *WRITTEN)
    cut = [text[:end] for text in whole for end in range(1, len(text))]
    cut += [text[begin:] for text in whole for begin in range(len(text))]
    return [*cut, "#", "x", " ", "&lt;", "&gt;", "\t", "\n", "\\", "<b>", "é"]


def chain(draw: random.Random) -> str:
    shown = draw.choice(AROUND).replace("IT", "m.content")
    for _ in range(draw.randrange(4)):
        shown = draw.choice(AROUND).replace("IT", f"({shown}){draw.choice(STEPS)}")
    return shown


def likely(draw: random.Random) -> str:
    """A content of pieces of control tokens, or of one that something taken out completes."""
    if draw.random() < 0.5:
        return "".join(draw.choices(pieces(), k=draw.randrange(1, 6)))
    token = draw.choice((*SPECIAL, *WRITTEN))
    at = draw.randrange(len(token))
    return token[:at] + draw.choice("#x\t") + token[at:]


@pytest.mark.parametrize("seed", range(12))
def test_no_random_chain_of_operations_makes_one(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(40):
        shown, content = chain(draw), likely(draw)
        assert made_of(EACH.replace("SHOWN", shown), content) == OWN, (shown, content)
