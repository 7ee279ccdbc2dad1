"""The bodies of /v1/messages, both ways: Anthropic's."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final, Literal

import msgspec

from octavo.errors import MessageError
from octavo.inputs import Conversation
from octavo.inputs.foreign_template import ForeignTemplate
from octavo.inputs.template import ChatTemplate
from octavo.params import GuidedParams
from octavo.server.apis.messages.block_messages import chat_messages, joined, reminder
from octavo.server.apis.messages.blocks import Block
from octavo.server.apis.messages.tools import chat_tool_choice, chat_tools
from octavo.server.http.errors import HttpError
from octavo.server.protocol.conversation import check_size, read_keys
from octavo.server.protocol.fields import FieldTable, Noted, Refused
from octavo.server.protocol.notes import Notes
from octavo.server.protocol.tool_media import EVERY_MODALITY
from octavo.wording import shown

_NOTED: Final = {
    "metadata": Noted(dict[str, Any], ({},)),
    "service_tier": Noted(str, ("auto", "standard_only")),
    "user_profile_id": Noted(str),
    "workspace_id": Noted(str),
    "context_management": Noted(dict[str, Any], ({},)),
    "diagnostics": Noted(dict[str, Any], ({},)),
    "speed": Noted(str, ("standard",)),
    "betas": Noted(list[str], ([],)),
    "billing_policy": Noted(dict[str, Any], ({},)),
    "compaction": Noted(dict[str, Any], ({},)),
    "fallbacks": Noted(list[Any] | str, ([],)),
    "fallback_credit_token": Noted(dict[str, Any] | str),
    "mcp_servers": Noted(list[Any], ([],), "has no effect: their tools cannot run here"),
}
"""Fields without effect that cannot make an answer wrong."""
_REFUSED: Final = {
    "container": Refused("this server runs no code"),
    "inference_geo": Refused("this server runs where it runs"),
    "kv_transfer_params": Refused("prefill and decode run in one engine"),
}
_OF_ANSWERS: Final = (
    "max_tokens", "stream", "stop_sequences", "temperature", "top_p", "top_k",
)  # fmt: skip
COUNT_FIELDS: Final = FieldTable(
    noted=_NOTED | dict.fromkeys(_OF_ANSWERS, Noted(Any)), refused=_REFUSED
)
"""Fields besides those of ``CountRequest``."""
MESSAGE_FIELDS: Final = FieldTable(noted=_NOTED, refused=_REFUSED)
"""Fields besides those of ``MessageRequest``."""
_FOR_BILLS: Final = "x-anthropic-billing-header"


class CacheControl(msgspec.Struct):
    """What to keep: all prefixes are."""

    type: str = "ephemeral"
    ttl: str | None = None


class OutputConfig(msgspec.Struct):
    """How much to reason, and the form of the answer."""

    effort: str | None = None
    format: dict[str, Any] | None = None
    """A JSON schema, which the answer's text then follows."""
    task_budget: Any = None
    """Noted."""


class Thinking(msgspec.Struct):
    """Whether to think before the answer."""

    type: str
    """"disabled", or one of the ways to think, of which there is one here."""
    budget_tokens: int | None = None
    """Noted: ``max_tokens`` is all that bounds thought here."""
    display: str | None = None
    """Noted: thoughts are shown whole."""
    block_binding: Any = None
    """Noted: nothing here is signed."""

    @property
    def is_on(self) -> bool:
        """Whether thought is asked for."""
        return self.type != "disabled"


class Thread(msgspec.Struct):
    """A conversation that a server keeps, which this one does not."""

    type: Literal["create", "continue"]
    previous_message_id: str | None = None


class CountRequest(msgspec.Struct, kw_only=True):
    """A conversation whose tokens are counted."""

    messages: list[dict[str, Any]]
    model: str = ""
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig = msgspec.field(default_factory=OutputConfig)
    output_format: dict[str, Any] | None = None
    """The older name of ``output_config.format``."""
    cache_control: CacheControl | None = None
    chat_template_kwargs: dict[str, Any] = msgspec.field(default_factory=dict)

    def conversation(
        self,
        notes: Notes,
        template_kwargs: dict[str, Any],
        modalities: Collection[str],
        template: Callable[[], ChatTemplate | ForeignTemplate],
    ) -> Conversation:
        """What the model reads; what has no effect is noted."""
        choice, parallel = chat_tool_choice(self.tool_choice, notes)
        return Conversation(
            messages=request_messages(self, notes, template, modalities),
            tools=chat_tools(self.tools, notes),
            tool_choice=choice,
            parallel_tool_calls=parallel,
            chat_template_kwargs=template_kwargs,
            continue_final_message=self.is_continued,
            strict=True,
        )

    @property
    def is_continued(self) -> bool:
        """Whether the last message is the beginning of the answer."""
        return self.messages[-1].get("role") == "assistant" if self.messages else False


class MessageRequest(CountRequest, kw_only=True):
    """A conversation to answer."""

    max_tokens: int
    thread: Thread | None = None
    """To begin one is noted; one that goes on is not found, on which clients send all messages."""
    stream: bool = False
    stop_sequences: list[str] = msgspec.field(default_factory=list)
    temperature: float | msgspec.UnsetType = msgspec.UNSET
    top_p: float | msgspec.UnsetType = msgspec.UNSET
    top_k: int | msgspec.UnsetType = msgspec.UNSET


class MessageUsage(msgspec.Struct, kw_only=True):
    """What an answer has cost; what came from the cache is not among ``input_tokens``."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int
    output_tokens: int


class Message(msgspec.Struct, tag="message", kw_only=True):
    """The answer."""

    id: str
    role: str = "assistant"
    model: str
    content: list[Block]
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: MessageUsage
    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET


class TokenCount(msgspec.Struct):
    """How many tokens a conversation has as the model would read it."""

    input_tokens: int
    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET


def note_hints(request: CountRequest, notes: Notes) -> None:
    """Note what of the objects within has no effect."""
    thinking = request.thinking
    if thinking is not None and thinking.budget_tokens is not None:
        notes.add("thinking.budget_tokens", "has no effect: max_tokens bounds thought")
    if thinking is not None and thinking.display is not None:
        notes.add("thinking.display")
    if thinking is not None and thinking.block_binding is not None:
        notes.add("thinking.block_binding")
    if request.output_config.task_budget is not None:
        notes.add("output_config.task_budget")


def check_thread(request: MessageRequest, notes: Notes) -> None:
    """Note a thread that begins; raise for one that goes on, which is only its end."""
    if request.thread is None:
        return
    if request.thread.type == "continue":
        raise HttpError(
            404,
            "thread: no conversation is kept here; send all messages",
            param="thread",
            code="thread_not_found",
        )
    notes.add("thread", "has no effect: no conversation is kept here")


def answer_form(request: CountRequest) -> GuidedParams | None:
    """The constraint on the answer's text that the request asks for."""
    given = {
        "output_config.format": request.output_config.format,
        "output_format": request.output_format,
    }
    asked = {name: form for name, form in given.items() if form is not None}
    if len(asked) > 1:
        raise HttpError(400, f"{' and '.join(asked)}: give one", param="output_format")
    for name, form in asked.items():
        known = form.keys() <= {"type", "schema"} and isinstance(form.get("schema"), dict)
        if form.get("type") != "json_schema" or not known:
            raise HttpError(
                400,
                f"{name} must be an object with the type 'json_schema' and a schema, and nothing "
                "else",
                param=name.partition(".")[0],
            )
        return GuidedParams(json=form["schema"], origin=name)
    return None


def request_messages(
    request: CountRequest,
    notes: Notes,
    template: Callable[[], ChatTemplate | ForeignTemplate],
    modalities: Collection[str] = EVERY_MODALITY,
) -> list[dict[str, Any]]:
    """The messages, the system's first, as OpenAI's; raises for what cannot be one.

    Those of one role that follow one another are one, as Anthropic has it. ``template`` is asked
    where the system speaks again behind others, which few chat templates show; ``modalities`` are
    the model's.
    """
    if not request.messages:
        raise MessageError("messages is an empty list")
    check_size("messages", request.messages)
    groups: list[list[dict[str, Any]]] = []
    system = _for_the_model(request.system, notes)
    if system:
        groups.append(chat_messages("system", "system", system, notes))
    for index, given in enumerate(request.messages):
        where = f"messages[{index}]"
        message = read_keys(where, given, {"role", "content"}, notes)
        role = message.get("role")
        if not isinstance(role, str) or role not in ("user", "assistant", "system"):
            raise MessageError(f"{where}.role is {shown(role)}; known: user, assistant, system")
        content = message.get("content")
        for each in chat_messages(f"{where}.content", role, content, notes, modalities):
            last = groups[-1][0]["role"] if groups else "system"
            is_late = role == "system" and last != "system"
            if is_late and not template().takes_late_system:
                notes.add(f"{where}.role", "system: shown as a <system-reminder> of the user")
                each = reminder(each)
            if groups and last == each["role"] != "tool":
                groups[-1].append(each)
            else:
                groups.append([each])
    return [joined(group) for group in groups]


def _for_the_model(
    system: str | list[dict[str, Any]] | None, notes: Notes
) -> str | list[dict[str, Any]] | None:
    """Without the line that Claude Code writes first, for Anthropic's bills.

    It differs from session to session, so that no two would share a prefix of their prompts.
    """
    kept: str | list[dict[str, Any]] | None
    if isinstance(system, list):
        kept = [block for block in map(_without_line, system) if block is not None]
    else:
        kept = None if system is None else _behind_line(system)
    if kept != system:
        notes.add("system", f"has a text of {_FOR_BILLS}, which was left out")
    return kept


def _without_line(block: Any) -> Any:
    """A block of the system's, or None where it holds nothing but the line."""
    text = block.get("text") if isinstance(block, dict) else None
    if not isinstance(text, str) or (kept := _behind_line(text)) == text:
        return block
    return {**block, "text": kept} if kept else None


def _behind_line(text: str) -> str:
    """What follows the line, or the text where it does not begin with it."""
    return text.partition("\n")[2].lstrip("\n") if text.startswith(f"{_FOR_BILLS}:") else text
