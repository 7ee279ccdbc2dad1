"""The items of /v1/responses: those of an input as messages of a chat, and those of an answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from octavo.errors import MessageError
from octavo.server.apis.responses.parts import (
    OF_MESSAGES,
    OF_OUTPUTS,
    OF_THOUGHTS,
    chat_part,
    part_text,
)
from octavo.server.apis.responses.tools import flat_name
from octavo.server.protocol.conversation import check_size, note_arguments, read_keys, text_of
from octavo.server.protocol.logprobs import ChatLogprob
from octavo.server.protocol.notes import Notes
from octavo.server.protocol.tool_media import EVERY_MODALITY, given_by_tool
from octavo.wording import shown
from octavo_registry import Delta

KEPT_ADVICE: Final = "this server keeps no conversations; send previous_response_id or all items"
_KEYS: Final = {
    "message": {"type", "role", "content", "id", "status", "phase"},
    "function_call": {"type", "id", "call_id", "name", "namespace", "arguments", "status"},
    "function_call_output": {"type", "id", "call_id", "output", "status", "name"},
    "custom_tool_call": {"type", "id", "call_id", "name", "namespace", "input", "status"},
    "custom_tool_call_output": {"type", "id", "call_id", "output", "status", "name"},
    "reasoning": {"type", "id", "summary", "content", "status", "encrypted_content"},
}
_OUTPUTS: Final = ("function_call_output", "custom_tool_call_output")
_NOTED: Final = frozenset(("async", "caller", *(key for keys in _KEYS.values() for key in keys)))
"""Keys without effect, those of items of other kinds among them."""


class OutputText(msgspec.Struct, tag="output_text"):
    """A part of a message."""

    text: str
    annotations: list[Any] = []
    logprobs: list[ChatLogprob] = []


class ReasoningText(msgspec.Struct, tag="reasoning_text"):
    """A part of what the model thought."""

    text: str


class OutputMessage(msgspec.Struct, tag="message", kw_only=True):
    """What the model says."""

    id: str
    status: str
    content: list[OutputText]
    role: str = "assistant"


class ReasoningItem(msgspec.Struct, tag="reasoning", kw_only=True):
    """What the model thought before it."""

    id: str
    status: str
    content: list[ReasoningText]
    summary: list[Any] = []


class FunctionCall(msgspec.Struct, tag="function_call", kw_only=True):
    """A call."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: str
    namespace: str | msgspec.UnsetType = msgspec.UNSET
    """Where the function belongs to, if the tools have namespaces."""


Item = OutputMessage | ReasoningItem | FunctionCall


def input_messages(
    items: list[dict[str, Any]],
    instructions: str | None,
    notes: Notes,
    before: Sequence[dict[str, Any]] = (),
    modalities: Collection[str] = EVERY_MODALITY,
) -> list[dict[str, Any]]:
    """The conversation that an input's items stand for; raises for those of other kinds.

    ``before`` are the items of the conversation that it goes on from, ``modalities`` the model's.
    """
    messages: list[dict[str, Any]] = []
    if instructions is not None:
        messages.append({"role": "system", "content": instructions})
    if not items:
        raise MessageError("input is an empty list")
    check_size("input", [*before, *items])
    pictures: list[dict[str, Any]] = []
    for index, item in enumerate((*before, *items), -len(before)):
        if item.get("type") not in _OUTPUTS:
            _show(messages, pictures)
        _add(messages, f"input[{index}]", item, notes, pictures, modalities)
    _show(messages, pictures)
    for message in messages:
        if "tool_calls" not in message:
            message.setdefault("content", "")
    return messages


def _show(messages: list[dict[str, Any]], parts: list[dict[str, Any]]) -> None:
    """Add images that tools gave, behind all of their results, as a message of the user's.

    Few chat templates show any in a tool's message.
    """
    if parts:
        messages.append({"role": "user", "content": [*parts]})
        parts.clear()


def _add(
    messages: list[dict[str, Any]],
    where: str,
    given: dict[str, Any],
    notes: Notes,
    pictures: list[dict[str, Any]],
    modalities: Collection[str],
) -> None:
    """Add an item; what a model wrote in one answer is one message.

    Images that a tool gave go to the ``pictures``.
    """
    kind = "message" if given.get("type") is None else given["type"]
    if not isinstance(kind, str) or kind not in _KEYS:
        raise MessageError(f"{where} is of type {shown(kind)}; known: {', '.join(_KEYS)}")
    item = read_keys(where, given, _KEYS[kind], notes, _NOTED)
    if item.get("encrypted_content"):
        notes.add(f"{where}.encrypted_content", "of another server cannot be read and was left out")
    last = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
    match kind:
        case "message":
            message = _message(where, item, notes)
            is_begun = last is not None and not last.keys() & {"content", "tool_calls"}
            if message["role"] == "assistant" and last is not None and is_begun:
                last["content"] = message["content"]
            else:
                messages.append(message)
        case "reasoning":
            texts = [
                part_text(f"{where}.{key}[{n}]", part, notes, OF_THOUGHTS)
                for key in ("content", "summary")
                for n, part in enumerate(_list(f"{where}.{key}", item.get(key, [])))
            ]
            messages.append({"role": "assistant", "reasoning_content": "\n".join(texts)})
        case "function_call" | "custom_tool_call":
            if last is None:
                last = {"role": "assistant"}
                messages.append(last)
            name = text_of(where, item, "name")
            if "namespace" in item:
                name = flat_name(text_of(where, item, "namespace"), name)
            if kind == "custom_tool_call":  # a chat's calls have JSON, and this is any text
                arguments = json.dumps({"input": text_of(where, item, "input")}, ensure_ascii=False)
            else:
                arguments = text_of(where, item, "arguments")
                note_arguments(f"{where}.arguments", arguments, notes)
            function = {"name": name, "arguments": arguments}
            call = {"id": text_of(where, item, "call_id"), "type": "function", "function": function}
            last.setdefault("tool_calls", []).append(call)
        case _:
            content = _output(where, item.get("output"), notes, pictures, modalities)
            call_id = text_of(where, item, "call_id")
            messages.append({"role": "tool", "tool_call_id": call_id, "content": content})


def _message(where: str, item: dict[str, Any], notes: Notes) -> dict[str, Any]:
    role, content = item.get("role"), item.get("content")
    if not isinstance(role, str) or role not in ("user", "assistant", "system", "developer"):
        raise MessageError(
            f"{where}.role is {shown(role)}; known: user, assistant, system, developer"
        )
    if isinstance(content, list) and content:
        return {
            "role": role,
            "content": [
                chat_part(f"{where}.content[{n}]", part, notes, OF_MESSAGES)
                for n, part in enumerate(content)
            ],
        }
    if not isinstance(content, str):
        raise MessageError(f"{where}.content must be text or a list of parts")
    return {"role": role, "content": content}


def _output(
    where: str,
    output: Any,
    notes: Notes,
    pictures: list[dict[str, Any]],
    modalities: Collection[str],
) -> str:
    """The texts of what a tool gave."""
    if isinstance(output, str):
        return output
    if not isinstance(output, list):
        raise MessageError(f"{where}.output must be text or a list of parts")
    parts = [
        part
        for n, each in enumerate(output)
        for part in _output_parts(f"{where}.output[{n}]", each, notes, modalities)
    ]
    pictures += [part for part in parts if part["type"] != "text"]
    return "\n".join(part["text"] for part in parts if part["type"] == "text")


def _output_parts(
    where: str, given: Any, notes: Notes, modalities: Collection[str]
) -> list[dict[str, Any]]:
    return given_by_tool(
        where, lambda: [chat_part(where, given, notes, OF_OUTPUTS)], modalities, notes
    )


def _list(where: str, given: Any) -> list[Any]:
    if not isinstance(given, list):
        raise MessageError(f"{where} must be a list")
    return given


class AnswerItems:
    """The items of an answer as its deltas come; ``tell`` makes the events that tell of them."""

    def __init__(
        self,
        request_id: str,
        tell: Callable[..., bytes],
        namespaced: Mapping[str, tuple[str, str]],
    ) -> None:
        self.items: list[Item] = []
        self._request_id = request_id
        self._tell = tell
        self._namespaced = namespaced
        self._pieces: list[str] = []
        self._logprobs: list[ChatLogprob] = []
        self._is_open = False

    def take(self, delta: Delta, logprobs: list[ChatLogprob]) -> list[bytes]:
        """Add a delta; ``logprobs`` are those of its content."""
        events: list[bytes] = []
        kind = _kind(delta)
        text = delta.content or delta.reasoning or delta.arguments or ""
        if delta.name is not None or not self._is_open or not isinstance(self.items[-1], kind):
            if kind is not FunctionCall and not text and not logprobs:
                return []
            events += [*self._close("completed"), *self._begin(delta)]
        if text or logprobs:
            self._pieces.append(text)
            self._logprobs += logprobs
            events.append(self._news(text, logprobs))
        return events

    def end(self, status: str) -> list[bytes]:
        """No more will come; an answer has one item at least, and ``status`` is the last one's."""
        begun = [] if self.items else self._begin(Delta())
        return [*begun, *self._close(status)]

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self.items[-1].id, "output_index": len(self.items) - 1}

    def _begin(self, delta: Delta) -> list[bytes]:
        kind = _kind(delta)
        prefix = {OutputMessage: "msg", ReasoningItem: "rs", FunctionCall: "fc"}[kind]
        count = f"_{len(self.items)}" if self.items else ""
        id = f"{prefix}_{self._request_id}{count}"
        item: Item
        part: OutputText | ReasoningText | None = None
        if kind is FunctionCall:
            name = delta.name or ""
            namespace, name = self._namespaced.get(name, (msgspec.UNSET, name))
            item = FunctionCall(
                id=id, call_id=delta.id or "", name=name, arguments="",
                status="in_progress", namespace=namespace,
            )  # fmt: skip
        elif kind is ReasoningItem:
            item, part = ReasoningItem(id=id, status="in_progress", content=[]), ReasoningText("")
        else:
            item, part = OutputMessage(id=id, status="in_progress", content=[]), OutputText("")
        self.items.append(item)
        self._is_open = True
        events = [self._tell("output_item.added", output_index=len(self.items) - 1, item=item)]
        if part is not None:
            events.append(
                self._tell("content_part.added", **self._place, content_index=0, part=part)
            )
        return events

    def _news(self, text: str, logprobs: list[ChatLogprob]) -> bytes:
        match self.items[-1]:
            case FunctionCall():
                return self._tell("function_call_arguments.delta", **self._place, delta=text)
            case ReasoningItem():
                place = {**self._place, "content_index": 0}
                return self._tell("reasoning_text.delta", **place, delta=text)
        place = {**self._place, "content_index": 0}
        return self._tell("output_text.delta", **place, delta=text, logprobs=logprobs)

    def _close(self, status: str) -> list[bytes]:
        if not self._is_open:
            return []
        self._is_open = False
        text, self._pieces = "".join(self._pieces), []
        logprobs, self._logprobs = self._logprobs, []
        item = self.items[-1]
        item.status = status
        events = []
        match item:
            case FunctionCall():
                item.arguments = text
                done = {"name": item.name, "arguments": text}
                events.append(self._tell("function_call_arguments.done", **self._place, **done))
            case ReasoningItem():
                thought = ReasoningText(text)
                item.content = [thought]
                place = {**self._place, "content_index": 0}
                events += [
                    self._tell("reasoning_text.done", **place, text=text),
                    self._tell("content_part.done", **place, part=thought),
                ]
            case OutputMessage():
                said = OutputText(text, logprobs=logprobs)
                item.content = [said]
                place = {**self._place, "content_index": 0}
                events += [
                    self._tell("output_text.done", **place, text=text, logprobs=logprobs),
                    self._tell("content_part.done", **place, part=said),
                ]
        last = self._tell("output_item.done", output_index=len(self.items) - 1, item=item)
        return [*events, last]


def _kind(delta: Delta) -> type[Item]:
    if delta.tool_call_index is not None:
        return FunctionCall
    return OutputMessage if delta.reasoning is None else ReasoningItem
