"""What Claude Code sends to /v1/messages, recorded from it and shortened, is answered."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import anthropic
import pytest
from anthropic import beta_tool
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent
from PIL import Image
from pydantic import BaseModel, TypeAdapter

from octavo.errors import MessageError
from octavo.inputs.template import ChatTemplate
from octavo.server.apis.messages.block_messages import chat_messages
from octavo.server.apis.messages.body import CountRequest, request_messages
from octavo.server.apis.messages.tools import chat_tools
from octavo.server.protocol.notes import Notes

RECORDED = json.loads((Path(__file__).parent / "recorded/claude_code_messages.json").read_text())
KINDS = ("first", "behind a call", "a title", "older thinking")
COUNT = "/v1/messages/count_tokens"
HELLO = [{"role": "user", "content": "What is the capital of France?"}]
EVENTS: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


@pytest.fixture(scope="module")
def claude(server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as made:
        yield made


def events_of(text: str) -> list[Any]:
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    parsed = [json.loads(each) for each in data]
    return [EVENTS.validate_python(each) for each in parsed if each["type"] != "ping"]


@pytest.mark.parametrize("request_", RECORDED, ids=KINDS)
def test_a_recorded_request_is_answered_in_anthropics_types(http, request_) -> None:
    reply = http.post(request_["path"], json=request_["body"], headers=request_["headers"])
    assert reply.status_code == 200, reply.text
    events = events_of(reply.text)
    assert events[0].type == "message_start"
    assert events[-1].type == "message_stop"
    told = reply.headers["x-octavo-warnings"]
    for field in ("metadata", "max_tokens", "thinking" if request_["body"].get("tools") else ""):
        assert field in told
    whole = http.post(request_["path"], json={**request_["body"], "stream": False})
    assert Message.model_validate(whole.json()).usage.input_tokens >= 0


@pytest.mark.parametrize("request_", RECORDED, ids=KINDS)
def test_the_tokens_of_a_recorded_request_are_counted(http, request_) -> None:
    reply = http.post(f"{COUNT}?beta=true", json=request_["body"])
    assert reply.status_code == 200, reply.text
    count = MessageTokensCount.model_validate(reply.json()).input_tokens
    usage = http.post("/v1/messages", json={**request_["body"], "stream": False}).json()["usage"]
    assert count == usage["input_tokens"] + usage["cache_read_input_tokens"]


def test_sessions_of_claude_code_share_the_prefix_of_their_prompts(http) -> None:
    def ask(version: str, *more: dict[str, Any]) -> Any:
        bill = {"type": "text", "text": f"x-anthropic-billing-header: cc_version={version}; x=1;"}
        body = {"messages": HELLO, "max_tokens": 2, "system": [bill, *more]}
        return http.post("/v1/messages", json=body)

    rules = {"type": "text", "text": "Be brief, and keep to what you know. " * 20}
    first, second = ask("2.1.197.092", rules), ask("2.1.200.f66", rules)
    usage = second.json()["usage"]
    assert usage["cache_read_input_tokens"] > 5 * usage["input_tokens"]
    assert first.json()["content"] == second.json()["content"]
    assert "system has a text of x-anthropic-billing-header" in second.headers["x-octavo-warnings"]
    alone = ask("2.1.197.092").json()["usage"]
    count = http.post(COUNT, json={"messages": HELLO}).json()["input_tokens"]
    assert alone["input_tokens"] + alone["cache_read_input_tokens"] == count


BILL = "x-anthropic-billing-header: cc_version=2.1;"


@pytest.mark.parametrize(
    ("system", "kept"),
    [
        (BILL, None),
        (f"{BILL}\n\nBe brief.\nBe kind.", "Be brief.\nBe kind."),
        ([{"type": "text", "text": f"{BILL}\nBe brief."}], "Be brief."),
        ([{"type": "text", "text": f"Be brief.\n{BILL}"}], f"Be brief.\n{BILL}"),
    ],
)
def test_only_the_line_for_bills_is_left_out(system: Any, kept: str | None) -> None:
    request = CountRequest(messages=HELLO, system=system)
    messages = request_messages(request, Notes(), lambda: ChatTemplate(ANY_ROLE))
    shown = [each["content"] for each in messages if each["role"] == "system"]
    texts = [each if isinstance(each, str) else each[0]["text"] for each in shown]
    assert texts == ([] if kept is None else [kept])


def test_a_client_that_looks_whether_anybody_listens_is_answered(http) -> None:
    reply = http.head("/")
    assert (reply.status_code, reply.text) == (200, "")
    assert "/docs" in http.get("/").text


@pytest.mark.parametrize("stream", [False, True])
def test_max_tokens_above_what_the_context_leaves_is_cut_and_told(http, stream) -> None:
    body = {"messages": HELLO, "max_tokens": 64_000, "stream": stream}
    reply = http.post("/v1/messages", json=body)
    count = http.post(COUNT, json={"messages": HELLO}).json()["input_tokens"]
    text = f"max_tokens 64000 is cut to the {1024 - count} that the context leaves"
    assert reply.headers["x-octavo-warnings"] == text
    assert text in reply.text


@pytest.mark.parametrize(
    "thinking",
    [
        {"type": "enabled", "budget_tokens": 1},
        {"type": "enabled", "budget_tokens": 10**9},
        {"type": "enabled"},
        {"type": "adaptive", "display": "omitted"},
        {"type": "between_tools"},
        {"type": "disabled", "budget_tokens": 5},
        {"type": "newer", "own": 1},
    ],
)
def test_thinking_of_any_form_and_budget_is_taken(http, thinking) -> None:
    body = {"messages": HELLO, "max_tokens": 4, "thinking": thinking}
    for path in ("/v1/messages", COUNT):
        reply = http.post(path, json=body)
        assert reply.status_code == 200, reply.text
        assert "thinking" in reply.headers["x-octavo-warnings"]


class City(BaseModel):
    city: str


def test_the_package_parses_an_answer_of_a_schema(claude) -> None:
    asked: dict[str, Any] = {"model": "octavo/tiny", "messages": HELLO, "max_tokens": 100}
    parsed = claude.messages.parse(**asked, output_format=City)
    assert isinstance(parsed.parsed_output, City)
    schema = City.model_json_schema() | {"additionalProperties": False}
    for more in (
        {"output_config": {"format": {"type": "json_schema", "schema": schema}}},
        {"output_format": {"type": "json_schema", "schema": schema}},
    ):
        answer = claude.post("/v1/messages", body={**asked, **more}, cast_to=Message)
        City.model_validate_json(answer.content[0].text)


def test_the_package_runs_tools(claude) -> None:
    asked = []

    @beta_tool
    def get_weather(city: str) -> str:
        """Get the weather of a city."""
        asked.append(city)
        return "It is sunny."

    runner = claude.beta.messages.tool_runner(
        model="octavo/tiny",
        max_tokens=100,
        max_iterations=2,
        tools=[get_weather],
        messages=[{"role": "user", "content": "What is the weather in Paris?"}],
        extra_body={"temperature": 0},
    )
    answers = list(runner)
    assert asked == ["Paris"]
    call, end = answers
    assert call.stop_reason == "tool_use"
    asked_in_all = [u.input_tokens + u.cache_read_input_tokens for u in (call.usage, end.usage)]
    assert asked_in_all[1] > asked_in_all[0] + 10  # the question and the call are there, too


def test_a_thread_of_the_package_sends_all_messages_again(claude) -> None:
    """No conversation is kept: what a thread sends after its first turn makes no sense alone."""
    thread = claude.beta.messages.thread(model="octavo/tiny", max_tokens=16)
    first = thread.send(HELLO[0])
    second = thread.send({"role": "user", "content": "Hello"})
    asked = first.usage.input_tokens + first.usage.cache_read_input_tokens
    assert second.usage.input_tokens + second.usage.cache_read_input_tokens > asked + 5


def test_a_thread_that_goes_on_is_told_in_anthropics_terms(claude) -> None:
    thread = {"type": "continue", "previous_message_id": "msg_1"}
    with pytest.raises(anthropic.NotFoundError) as raised:
        claude.messages.create(
            model="octavo/tiny", messages=HELLO, max_tokens=4, extra_body={"thread": thread}
        )
    assert raised.value.body["error"]["details"] == {"error_code": "thread_not_found"}


def png() -> str:
    file = BytesIO()
    Image.new("RGB", (32, 32), "red").save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": png()}}


def test_images_are_seen_in_questions_in_results_and_in_documents(omni) -> None:
    use = {"type": "tool_use", "id": "1", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "1", "content": [IMAGE]}
    paper = {"type": "document", "source": {"type": "content", "content": [IMAGE]}}
    text = {"type": "text", "text": "What do you see?"}
    calls = [*HELLO, {"role": "assistant", "content": [use]}]
    with omni.client() as http:
        for blocks, before in (([IMAGE], []), ([result], calls), ([paper], [])):
            body: dict[str, Any] = {"max_tokens": 4}
            counts = []
            for content in ([*blocks, text], [text]):
                body["messages"] = [*before, {"role": "user", "content": content}]
                if before and content == [text]:
                    bare = {**result, "content": "a"}
                    body["messages"] = [*before, {"role": "user", "content": [bare, text]}]
                reply = http.post("/v1/messages", json=body)
                assert reply.status_code == 200, reply.text
                count = http.post(COUNT, json=body)
                assert count.status_code == 200, count.text
                usage = reply.json()["usage"]
                counts.append(usage["input_tokens"] + usage["cache_read_input_tokens"])
                assert count.json()["input_tokens"] == counts[-1]
            assert counts[0] > counts[1] + 2  # what the image takes


def test_text_around_the_question_is_shown_to_the_model() -> None:
    source = {"type": "text", "media_type": "text/plain", "data": "D"}
    blocks = [
        {"type": "document", "source": source, "title": "T", "citations": {"enabled": True}},
        {"type": "search_result", "source": "S", "title": "T", "content": [text("a"), text("b")]},
        text("Q"),
    ]
    notes = Notes()
    (message,) = chat_messages("m", "user", blocks, notes)
    assert "".join(part["text"] for part in message["content"]) == (
        "<document>\n<source>T</source>\nD\n</document>"
        "<search_result>\n<source>S</source>\n<title>T</title>\nab\n</search_result>Q"
    )
    assert [note.path for note in notes] == ["m.citations"]


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ({"type": "document", "source": {"type": "base64", "media_type": "application/pdf",
          "data": "JVBERi0xLjcK"}}, "is a PDF, and only texts can be read here"),
        ({"type": "document", "source": {"type": "url", "url": "http://x/a.pdf"}}, "not fetched"),
        ({"type": "document", "source": {"type": "file", "file_id": "1"}}, "files are not kept"),
        ({"type": "document", "source": {"type": "text"}}, "data must be text"),
        ({"type": "document", "source": {"type": "content", "content": [
            {"type": "video"}]}}, "takes text and images"),
        ({"type": "document"}, "source must be an object"),
        ({"type": "image", "source": {"type": "file", "file_id": "1"}}, "files are not kept"),
        ({"type": "image", "source": {"type": "base64", "data": "x"}}, "media_type must be"),
        ({"type": "image", "source": {"type": "base64", "media_type": "a/b", "data": ""}}, "no im"),
        ({"type": "search_result", "source": "s", "title": 1, "content": "a"}, "title must be"),
        ({"type": "search_result", "source": "s", "title": "t"}, "content must be text or"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_named(block, said) -> None:
    with pytest.raises(MessageError, match=rf"^m\[0\].*{said}"):
        chat_messages("m", "user", [block], Notes())


def test_what_only_anthropics_servers_read_is_left_out_and_told() -> None:
    blocks = [
        {"type": "redacted_thinking", "data": "x"},
        {"type": "server_tool_use", "id": "1", "name": "web_search", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "1", "content": []},
    ]
    notes = Notes()
    assert chat_messages("m", "assistant", blocks, notes) == [{"role": "assistant", "content": ""}]
    assert [note.path for note in notes] == [f"m:{block['type']}" for block in blocks]
    tools = [{"type": kind, "name": "a"} for kind in ("web_search_20250305", "bash_20250124")]
    notes = Notes()
    assert chat_tools(
        [*tools, {"name": "f", "input_schema": {}, "defer_loading": True}], notes
    ) == [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    assert [note.path for note in notes] == [
        "tools:web_search",
        "tools:bash",
        "tools.defer_loading",
    ]


def test_a_choice_of_a_tool_that_cannot_run_is_refused(http) -> None:
    tools = [{"type": "web_search_20250305", "name": "web_search"}]
    for choice in ({"type": "tool", "name": "web_search"}, {"type": "any"}):
        body = {"messages": HELLO, "max_tokens": 4, "tools": tools, "tool_choice": choice}
        assert http.post("/v1/messages", json=body).status_code == 400


ANY_ROLE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
ONE_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('the system speaks first') }}{% endif %}[{{ m.role }}]{{ m.content }}"
    "{% endfor %}"
)
SYSTEM_ON_TOP = "{{ messages | selectattr('role', 'eq', 'system') | map(attribute='content') }}"
LATE = [
    {"role": "system", "content": "b"},
    {"role": "user", "content": "c"},
    {"role": "system", "content": "d"},
    {"role": "user", "content": "e"},
    {"role": "assistant", "content": "f"},
    {"role": "assistant", "content": "g"},
]


def test_a_late_systems_message_stays_where_the_template_shows_it() -> None:
    notes = Notes()
    request = CountRequest(messages=LATE, system="a")
    made = request_messages(request, notes, lambda: ChatTemplate(ANY_ROLE))
    assert [each["role"] for each in made] == ["system", "user", "system", "user", "assistant"]
    assert made[0]["content"] == [text("a"), text("b")]
    assert made[-1]["content"] == [text("f"), text("g")]
    assert notes.texts() == []


@pytest.mark.parametrize("template", [ONE_SYSTEM, SYSTEM_ON_TOP, "{{ messages[0].content }}"])
def test_a_late_systems_message_is_else_the_users_and_told(template) -> None:
    notes = Notes()
    request = CountRequest(messages=LATE, system="a")
    made = request_messages(request, notes, lambda: ChatTemplate(template))
    assert [each["role"] for each in made] == ["system", "user", "assistant"]
    reminded = "<system-reminder>\nd\n</system-reminder>"
    assert made[1]["content"] == [text("c"), text(reminded), text("e")]
    assert [note.path for note in notes] == ["messages.role"]
