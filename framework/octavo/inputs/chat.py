"""Messages to the text of a prompt, by the model's chat template or the caller's."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import NoneType
from typing import Any

from octavo.errors import ConfigError, PromptError
from octavo.inputs.controls import ChatText, ContentGuard, Vocabulary, read_vocabulary
from octavo.inputs.conversation import Conversation
from octavo.inputs.foreign_template import ForeignTemplate, ForeignTemplates
from octavo.inputs.messages import (
    check_dicts,
    check_messages,
    fit_arguments,
    fit_contents,
    fit_roles,
    plain_data,
)
from octavo.inputs.template import ChatTemplate
from octavo.wording import shown
from octavo_registry.model import ModelCapabilities
from octavo_registry.tokenizer import Tokenizer

log = logging.getLogger(__name__)

_RESERVED = frozenset(("messages", "tools", "documents", "add_generation_prompt"))
_MAX_COMPILED_TEMPLATES = 32


class ChatRenderer:
    """Renders chats for one model; the text is to be encoded without adding special tokens."""

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        *,
        chat_template: str | None = None,
        capabilities: ModelCapabilities | None = None,
        media_texts: Mapping[str, str] | None = None,
        media_marks: Iterable[str] = (),
        trust_message_tokens: bool = False,
        default_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """``chat_template`` is Jinja source that replaces the tokenizer's own.

        ``media_texts`` stand for media, by modality, in a template that takes text alone, and
        ``media_marks`` in every one. ``trust_message_tokens`` lets contents write control tokens.
        ``default_kwargs`` are for chats that do not set them.
        """
        self._media_texts = media_texts or {}
        self._own = chat_template or (tokenizer.chat_template if tokenizer else None)
        self._capabilities = capabilities or ModelCapabilities()
        variables = tokenizer.special_tokens if tokenizer else {}
        vocabulary = Vocabulary()
        if not trust_message_tokens:
            media = (*self._media_texts.values(), *media_marks)
            vocabulary = read_vocabulary(tokenizer, media)
        # Compiling takes milliseconds, and a caller sends the same source with each request.
        remember = lru_cache(_MAX_COMPILED_TEMPLATES)
        self._compiled = remember(lambda source: ChatTemplate(source, variables))
        self._guard = remember(lambda template: ContentGuard(vocabulary, template))
        self._foreign = ForeignTemplates(variables)
        self._read = remember(self._foreign.read)
        self._default_kwargs = self._checked_defaults(default_kwargs or {})

    def close(self) -> None:
        """End the processes that run templates of requests; calling it again does nothing."""
        self._foreign.close()

    def render(self, chat: Conversation) -> ChatText:
        """Write the prompt, in which contents are text and never control tokens.

        All ``tools`` are shown, whatever the choice among them.
        """
        strict = chat.strict
        begins_answer = chat.add_generation_prompt
        if begins_answer is None:
            begins_answer = not chat.continue_final_message
        if begins_answer and chat.continue_final_message:
            raise PromptError(
                "add_generation_prompt and continue_final_message exclude each other; give one",
                param="add_generation_prompt",
            )
        has_tools = bool(chat.tools)
        template = self.template(chat.chat_template, has_tools=has_tools, is_foreign=strict)
        kwargs = _checked_kwargs(chat.chat_template_kwargs)
        lists = {
            "tools": check_dicts("tools", chat.tools),
            "documents": check_dicts("documents", chat.documents),
        }
        plain = check_messages(chat.messages, self._capabilities)
        if strict:
            _check_is_read(template, kwargs, lists)

        def write(messages: list[dict[str, Any]], others: Mapping[str, dict[str, Any]]) -> str:
            fit_contents(messages, template, self._media_texts, self._capabilities)
            fit_arguments(messages, template)
            if strict:
                fit_roles(messages, template)
            marker = _mark_end(messages[-1]) if chat.continue_final_message else None
            text = template.render(
                messages,
                **{**self._default_kwargs, **others["kwargs"]},
                **others["lists"],
                add_generation_prompt=begins_answer,
            )
            return text if marker is None else _cut_at(text, marker)

        written = self._guard(template).rendered(write, plain, {"kwargs": kwargs, "lists": lists})
        check_shows_messages(template)
        return written

    def template(
        self, given: str | None = None, *, has_tools: bool = False, is_foreign: bool = False
    ) -> ChatTemplate | ForeignTemplate:
        """Return what ``render`` uses; ``is_foreign``: one that is ``given`` is a stranger's."""
        source = self._source(given, has_tools=has_tools)
        return self._read(source) if is_foreign and source == given else self._compiled(source)

    def _checked_defaults(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What no template could take is an error, and what the model's does not read is told."""
        try:
            kwargs = _checked_kwargs(given)
        except PromptError as error:
            raise ConfigError(f"default_{error}") from error
        source = self.tool_template
        read = self._compiled(source).variables if kwargs and source is not None else kwargs.keys()
        for name in kwargs.keys() - read:
            log.warning("default_chat_template_kwargs: the chat template does not read %r", name)
        return kwargs

    @property
    def tool_template(self) -> str | None:
        """The Jinja source for requests with tools; None if the model has none."""
        try:
            return self._source(None, has_tools=True)
        except PromptError:
            return None

    def _source(self, given: str | None, *, has_tools: bool) -> str:
        named = self._own if isinstance(self._own, Mapping) else {}
        if given is not None:
            if not isinstance(given, str):
                raise PromptError(
                    f"chat_template must be text, not {type(given).__name__}",
                    param="chat_template",
                )
            return named.get(given, given)
        if isinstance(self._own, str):
            return self._own
        name = "tool_use" if has_tools and "tool_use" in named else "default"
        if name not in named:
            raise PromptError(
                "this model has no default chat template; "
                "give chat_template=load_chat_template(FILE or TEXT)"
                + (f" or one of: {', '.join(sorted(named))}" if named else ""),
                param="chat_template",
            )
        return named[name]


def check_shows_messages(template: ChatTemplate | ForeignTemplate) -> None:
    """Raise for one whose prompts would lack whatever the messages say, as a file's name would."""
    if template.ignores_messages:
        raise PromptError(
            f"chat_template={shown(template.source)} shows nothing of the messages; it must be "
            "Jinja source such as {% for message in messages %}{{ message.content }}{% endfor %}; "
            "for a file give load_chat_template(FILE)",
            param="chat_template",
        )


def _checked_kwargs(kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    if not isinstance(kwargs, (Mapping, NoneType)):
        raise PromptError(
            f"chat_template_kwargs must be a dict, not {type(kwargs).__name__}",
            param="chat_template_kwargs",
        )
    plain: dict[str, Any] = plain_data("chat_template_kwargs", dict(kwargs or {}))
    for name in plain:
        if not isinstance(name, str):
            raise PromptError(
                f"chat_template_kwargs: the key {name!r} must be a name",
                param="chat_template_kwargs",
            )
        if name in _RESERVED:
            raise PromptError(
                f"chat_template_kwargs may not set {name!r}; it is an argument",
                param="chat_template_kwargs",
            )
    return plain


def _check_is_read(
    template: ChatTemplate | ForeignTemplate, kwargs: Mapping[str, Any], lists: Mapping[str, Any]
) -> None:
    """Raise for what the template would drop without a word."""
    given = {f"chat_template_kwargs.{name}": name for name in kwargs}
    given |= {name: name for name, value in lists.items() if value}
    for where, name in given.items():
        if name not in template.variables:
            known = ", ".join(sorted(template.variables - _RESERVED)) or "nothing else"
            raise PromptError(
                f"{where} is not read by the chat template, which reads: messages, {known}",
                param=where.partition(".")[0],
            )


def _mark_end(message: dict[str, Any]) -> str:
    """Append a marker to the message's last text, and return it."""
    # The space at its end shows whether the template strips contents.
    marker = f"<end of message {secrets.token_hex(8)}> "
    content = message.get("content")
    if isinstance(content, str):
        message["content"] = content + marker
        return marker
    for part in reversed(content or []):
        if "text" in part:
            part["text"] += marker
            return marker
    raise PromptError(
        "continue_final_message: the final message has no text to continue",
        param="continue_final_message",
    )


def _cut_at(text: str, marker: str) -> str:
    end = text.rfind(marker.rstrip())
    if end < 0:
        raise PromptError(
            "continue_final_message: the chat template does not show the final message's text",
            param="continue_final_message",
        )
    return text[:end] if text.startswith(marker, end) else text[:end].rstrip()
