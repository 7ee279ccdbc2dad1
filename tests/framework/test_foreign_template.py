"""Chat templates of requests run under limits, and write what they write elsewhere."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import sample_tokenizers
from octavo.errors import MessageError, PromptError, QueueFullError, RequestFailedError
from octavo.inputs import ChatRenderer, Conversation, foreign_template
from octavo.inputs.foreign_template import MAX_CHARS, MAX_SOURCE_CHARS, ForeignTemplate
from octavo.inputs.template import ChatTemplate
from rendered_chats import rendered

HELLO = [{"role": "user", "content": "Gr\u00fc\u00dfe </s> \U0001f600"}]
SHOWS = "{{ messages[0].content }}"
EXAMPLES = Path(__file__).parents[2] / "examples" / "chat_templates"


@pytest.fixture(scope="module")
def renderer() -> Iterator[ChatRenderer]:
    made = ChatRenderer(sample_tokenizers.load("byte_level"), chat_template=SHOWS)
    yield made
    made.close()


@pytest.mark.parametrize(
    "source", [SHOWS + "{{ eos_token }}{{ n }}", *(f.read_text() for f in EXAMPLES.glob("*.jinja"))]
)
def test_a_stranger_s_template_gives_what_the_model_s_own_gives(renderer, source) -> None:
    options: dict[str, Any] = {"chat_template": source}
    if "{{ n }}" in source:
        options["chat_template_kwargs"] = {"n": 2**80}
    foreign = renderer.template(source, is_foreign=True)
    assert isinstance(foreign, ForeignTemplate)
    own = renderer.template(source)
    assert isinstance(own, ChatTemplate)
    for name in foreign.facts.__struct_fields__:
        assert getattr(foreign, name) == getattr(own, name), name
    elsewhere = renderer.render(Conversation(messages=HELLO, strict=True, **options))
    here = renderer.render(Conversation(messages=HELLO, **options))
    assert (elsewhere.text, elsewhere.marked) == (here.text, here.marked)


BOMBS = {
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "output": "{% for a in range(99999) %}{{ 'a' * 9999 }}{% endfor %}",
    "string": "{{ ('a' * 9999999999) | length }}",
    "string that is no constant": "{% set n = messages | length %}{{ 'a' * (9999999999 * n) }}",
    "doubling": "{% set ns = namespace(a='aaaa') %}{% for i in range(60) %}"
    "{% set ns.a = ns.a ~ ns.a %}{% endfor %}",
    "list": "{{ [0] * 9999999999 }}",
    "number": "{{ 9 ** (9 ** 9) }}",
    "number that is no constant": "{% set n = messages | length + 8 %}{{ n ** (n ** n) }}",
    "format": "{{ '%9999999999d' | format(1) }}",
    "center": "{{ 'a' | center(9999999999) }}",
    "indent": "{{ 'a\nb' | indent(999999999) }}",
    "tojson": "{{ [1] | tojson(indent=999999999) }}",
    "batch": "{{ [1] | batch(999999999, 0) | list | length }}",
    "slice": "{{ [1] | slice(999999999) | list | length }}",
    "lipsum": "{{ lipsum(n=9999999) }}",
    "recursion": "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
    "recursion that doubles": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}"
    "{% endmacro %}{{ m(60) }}",
    "replace": "{% set ns = namespace(a='aa') %}{% for i in range(40) %}"
    "{% set ns.a = ns.a | replace('a', 'aaaa') %}{% endfor %}",
    "sort": "{% for i in range(9999) %}{{ range(99999) | sort | length }}{% endfor %}",
    "wordwrap": "{{ ('a' * 99999999) | wordwrap(1) | length }}",
    "nested source": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "nested blocks": "{% if 1 %}" * 2000 + "{% endif %}" * 2000,
    "range": "{{ range(10 ** 12) | list }}",
}


SLOW = ("slice", "lipsum", "recursion that doubles", "replace", "sort", "wordwrap")
"""These take all of their second."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in BOMBS]
)
def test_no_template_takes_more_than_its_limits(renderer, name) -> None:
    begin = time.monotonic()
    with pytest.raises(PromptError) as refused:
        rendered(renderer, HELLO, chat_template=SHOWS + BOMBS[name], strict=True)
    assert time.monotonic() - begin < 30  # 1 s of a core, on a machine that does other things too
    assert len(str(refused.value)) < 3000
    assert rendered(renderer, HELLO, chat_template=SHOWS, strict=True) == HELLO[0]["content"]


def test_what_is_slow_with_these_messages_alone_is_refused(renderer) -> None:
    source = SHOWS + "{% if messages | length > 9 %}" + BOMBS["loops"] + "{% endif %}"
    assert rendered(renderer, HELLO, chat_template=source, strict=True) == HELLO[0]["content"]
    with pytest.raises(PromptError, match="too slow: it was given up") as refused:
        rendered(renderer, HELLO * 10, chat_template=source, strict=True)
    assert refused.value.param == "chat_template"


def test_much_output_and_long_sources_are_refused(renderer) -> None:
    most = f"{SHOWS}{{{{ 'a' * {MAX_CHARS - 99} }}}}"
    text = rendered(renderer, HELLO, chat_template=most, strict=True)
    assert len(text) == MAX_CHARS - 99 + len(HELLO[0]["content"])
    with pytest.raises(MessageError, match=f"writes more than {MAX_CHARS} characters"):
        rendered(renderer, HELLO, chat_template=f"{SHOWS}{{{{ 'a' * {MAX_CHARS} }}}}", strict=True)
    changes = "".join(f"{{{{ messages[0].content | replace('{n}', '') }}}}" for n in range(65))
    with pytest.raises(PromptError, match="changes texts in 65 ways"):
        rendered(renderer, HELLO, chat_template=changes, strict=True)
    with pytest.raises(PromptError, match=f"at most {MAX_SOURCE_CHARS}"):
        rendered(renderer, HELLO, chat_template=SHOWS + " " * MAX_SOURCE_CHARS, strict=True)


@pytest.mark.parametrize(
    ("source", "kind", "param"),
    [
        ("{% if %}", PromptError, "chat_template"),
        ("{{ messages | nothing }}", PromptError, "chat_template"),
        (SHOWS + "{{ raise_exception('no!') }}", MessageError, "messages"),
        (SHOWS + "{{ 1 / 0 }}", MessageError, "messages"),
        (SHOWS + "{{ ''.__class__.__mro__ }}", MessageError, "messages"),
        ("hello", PromptError, "chat_template"),
    ],
)
def test_errors_are_those_of_the_model_s_own(renderer, source, kind, param) -> None:
    raised = []
    for strict in (False, True):
        with pytest.raises(PromptError) as refused:
            rendered(renderer, HELLO, chat_template=source, strict=strict)
        raised.append((type(refused.value), str(refused.value), refused.value.param))
    assert raised[0] == raised[1]
    assert (raised[0][0], raised[0][2]) == (kind, param)


def test_slow_ones_wait_for_one_another_and_not_without_end(renderer, monkeypatch) -> None:
    monkeypatch.setattr(renderer._foreign, "_waiting", threading.Semaphore(3))
    sources = [f"{SHOWS}{{# {n} #}}{BOMBS['loops']}" for n in range(5)]

    def outcome(source: str) -> type[Exception]:
        with pytest.raises((PromptError, QueueFullError)) as refused:
            rendered(renderer, HELLO, chat_template=source, strict=True)
        return type(refused.value)

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(outcome, sources))
    assert QueueFullError in found
    assert PromptError in found
    monkeypatch.undo()
    monkeypatch.setattr(foreign_template, "WAIT_SECONDS", 0.01)
    with ThreadPoolExecutor(8) as threads:
        assert QueueFullError in list(threads.map(outcome, sources[:3]))


def test_a_name_of_the_model_s_templates_is_no_stranger_s(tmp_path) -> None:
    named = {"default": SHOWS, "tool_use": SHOWS + "tools"}
    sample_tokenizers.save("byte_level", tmp_path, chat_template=named)
    renderer = ChatRenderer(sample_tokenizers.open_folder(tmp_path))
    assert isinstance(renderer.template("tool_use", is_foreign=True), ChatTemplate)


def test_children_end_with_close_and_with_their_parent() -> None:
    script = (
        "import sys\nfrom octavo.inputs import ChatRenderer, Conversation\nr = ChatRenderer(None)\n"
        "said = [{'role': 'user', 'content': 'a'}]\n"
        f"r.render(Conversation(messages=said, chat_template={SHOWS!r}, strict=True))\n"
        "print(r._foreign._pool._idle[0].pid, flush=True)\nsys.stdin.read()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert Path(f"/proc/{pid}").exists()
    parent.kill()
    parent.communicate()
    until = time.monotonic() + 20
    while _runs(pid) and time.monotonic() < until:
        time.sleep(0.01)
    assert not _runs(pid)
    renderer = ChatRenderer(None)
    renderer.close()
    with pytest.raises(RequestFailedError, match="closed"):
        rendered(renderer, HELLO, chat_template=SHOWS, strict=True)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
