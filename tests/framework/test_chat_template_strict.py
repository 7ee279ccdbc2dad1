"""What a chat template would drop without a word, where a caller wants to know."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.errors import PromptError
from octavo.inputs import ChatRenderer, ChatTemplate
from rendered_chats import rendered

PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
NAMED = "{% for m in messages %}{{ m.name or m.role }}: {{ m.content }}\n{% endfor %}"
HELLO = [{"role": "user", "content": "Hello"}]


def render(template: str, messages: list[dict[str, Any]] = HELLO, **options: Any) -> str:
    return rendered(ChatRenderer(None, chat_template=template), messages, strict=True, **options)


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        (PLAIN, {"messages"}),
        ("{{ bos_token }}{% if a is defined %}{{ range(2) }}{% endif %}", {"bos_token", "a"}),
        ("{% if not a is defined %}{% set a = 1 %}{% endif %}{{ a }}", {"a"}),
        ("{% set a = a or 1 %}{{ a }}", {"a"}),
        ("{% if x %}{% set a = 1 %}{% else %}{% set a = 2 %}{% endif %}{{ a }}", {"x"}),
        ("{% macro f(a) %}{{ a }}{{ b }}{% endmacro %}{{ f(1) }}", {"b"}),
        ("{% macro f(a) %}{{ a }}{% endmacro %}{{ f(a) }}", {"a"}),
        ("{% for a in x %}{{ a }}{{ loop.index }}{% endfor %}", {"x"}),
        ("{% for a in a %}{{ a }}{% endfor %}", {"a"}),
        ("{% for m in x %}{% set a = m %}{% endfor %}{{ a }}", {"x", "a"}),
        ("{% if x %}{% set a = x %}{% endif %}{{ a }}", {"x", "a"}),
        (
            "{% if x %}{% set a = 1 %}{% elif y %}{% else %}{% set a = 2 %}{% endif %}{{ a }}",
            {"x", "y", "a"},
        ),
        (
            "{% if x %}{% elif y %}{% set a = b %}{% else %}{% set a = 2 %}{% endif %}{{ x }}",
            {"x", "y", "b"},
        ),
    ],
)
def test_variables_are_what_the_source_reads_of_its_caller(source, wanted) -> None:
    assert ChatTemplate(source).variables == wanted


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chat_template_kwargs": {"a": 1}}, r"chat_template_kwargs\.a is not read"),
        ({"documents": [{"text": "b"}]}, "documents is not read"),
        ({"tools": [{"name": "f"}]}, "tools is not read"),
    ],
)
def test_what_the_template_does_not_read_is_refused(options, message) -> None:
    with pytest.raises(PromptError, match=message):
        render(PLAIN, **options)


def test_what_it_reads_is_taken() -> None:
    source = PLAIN + "{{ a }}{{ documents }}{{ tools }}"
    lists = {"documents": [{"text": "b"}], "tools": [{"name": "f"}]}
    assert "{'text': 'b'}" in render(source, chat_template_kwargs={"a": 1}, **lists)
    assert render(PLAIN, documents=[], tools=[]) == "user: Hello\n"


def test_a_name_is_shown_where_the_template_shows_it_and_has_no_effect_elsewhere() -> None:
    messages = [{"role": "user", "content": "Hello", "name": "Ada"}]
    assert render(NAMED, messages) == "Ada: Hello\n"
    assert render(PLAIN, messages) == "user: Hello\n"
    answer = [*HELLO, {"role": "tool", "content": "1", "name": "f"}]
    assert render(PLAIN, answer) == "user: Hello\ntool: 1\n"


def test_developers_are_the_system_where_the_template_has_none() -> None:
    messages = [{"role": "developer", "content": "Be kind."}]
    assert render(PLAIN, messages) == "system: Be kind.\n"
    assert render(PLAIN + "{# developer #}", messages) == "developer: Be kind.\n"


def test_roles_that_nobody_knows_are_refused_unless_the_template_does() -> None:
    messages = [{"role": "wizard", "content": "Abra"}]
    with pytest.raises(PromptError, match="role='wizard'"):
        render(PLAIN, messages)
    assert render(PLAIN + "{# wizard #}", messages) == "wizard: Abra\n"


def test_nothing_of_this_holds_for_callers_who_do_not_ask() -> None:
    renderer = ChatRenderer(None, chat_template=PLAIN)
    messages = [{"role": "wizard", "content": "Abra", "name": "Ada"}]
    assert rendered(renderer, messages, chat_template_kwargs={"a": 1}) == "wizard: Abra\n"
