"""How a model writes its answers: what a guide must hold it to, and what reads its text."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from octavo.config.engine import ModelConfig
from octavo.errors import ParameterError, UnsupportedConstraint
from octavo.guided.answers import behind, behind_calls, calls_or, only_calls, text_with_calls
from octavo.model_folder import ModelFolder
from octavo.params import GuidedParams
from octavo.tools.checked import CheckedReasoningParser, CheckedToolParser
from octavo.tools.choice import ToolUse
from octavo.tools.message import MessageStream
from octavo_registry import CallForm, PluginHost, ReasoningParser, ToolParser
from octavo_registry.tokenizer import Tokenizer

log = logging.getLogger(__name__)

AUTO = "auto"
_OF_CONTENT = ("response_format", "text", "output_config.format", "output_format")
"""Where requests name a form for content, in OpenAI's two routes and in Anthropic's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedAnswer:
    """What one request's answers are held to, and read by."""

    guided: GuidedParams | None
    """The constraint on the whole text, its reasoning included."""
    markers: tuple[str, ...] = ()
    """Special tokens that the text is read by."""
    new_stream: Callable[[], MessageStream] | None = None
    """Begins a continuation; None: all text is content."""
    parallel: bool = True


class AnswerFormat:
    """The parsers of one model; either may be missing."""

    def __init__(
        self,
        *,
        tool_parser: ToolParser | None = None,
        reasoning_parser: ReasoningParser | None = None,
        takes_auto: bool = True,
        without_parser: str | None = None,
        foreign: str = "",
    ) -> None:
        """``takes_auto``: requests may leave it to the model whether it calls.

        ``without_parser`` says why requests with tools are refused; None: calls that nothing
        parses are content. ``foreign`` names the parsers that plugins of others give, which may
        take any time; empty: there are none.
        """
        self.foreign = foreign
        self.tool_parser = tool_parser
        self._without_parser = without_parser
        self.reasoning_parser = reasoning_parser
        self._takes_auto = takes_auto

    def expect(
        self, prompt: str, use: ToolUse | None, guided: GuidedParams | None
    ) -> ExpectedAnswer:
        """What is to follow ``prompt``; ``guided`` is the request's constraint on its content."""
        calls, reasoning = self.tool_parser, self.reasoning_parser
        if use is not None:
            self._check(use)
        tools = None if use is None else use.tools
        guided = self._with_calls(use, guided)
        before = None if reasoning is None or guided is None else reasoning.before_answer(prompt)
        if before is not None and guided is not None:
            only = use is not None and use.choice != "auto"
            guided = behind_calls(before, guided) if only else behind(before, guided)
        if reasoning is None and (use is None or calls is None):
            return ExpectedAnswer(guided=guided)
        parsers = [reasoning, calls if use else None]
        return ExpectedAnswer(
            guided=guided,
            markers=tuple(mark for parser in parsers if parser for mark in parser.markers),
            new_stream=lambda: MessageStream(
                reasoning=reasoning.stream(tools, prompt=prompt) if reasoning else None,
                tools=calls.stream(tools) if use and calls else None,
            ),
            parallel=use is None or use.parallel,
        )

    def _check(self, use: ToolUse) -> None:
        if self._without_parser is not None:
            raise UnsupportedConstraint(self._without_parser, param="tools")
        if use.choice == "auto" and not self._takes_auto:
            raise ParameterError(
                "tool_choice='auto' is switched off here (enable_auto_tool_choice); "
                "name a function, or say 'required' or 'none'",
                param="tool_choice",
            )

    def _with_calls(self, use: ToolUse | None, guided: GuidedParams | None) -> GuidedParams | None:
        if use is None or not (use.is_guided or guided is not None):
            return guided
        form = self._form(use)
        if use.choice != "auto":
            _check_goes_with_calls(guided)
            return only_calls(form)
        if guided is not None:
            return calls_or(form, guided)
        return text_with_calls(form, parallel=use.parallel)

    def _form(self, use: ToolUse) -> CallForm:
        form = None
        if self.tool_parser is not None:
            form = self.tool_parser.form(use.allowed, parallel=use.parallel)
        if form is None:
            field = "tools" if use.choice == "auto" else "tool_choice"
            raise UnsupportedConstraint(
                f"{field}: this model's format of calls cannot be enforced for these tools; leave "
                "the choice to the model, with tools that are not strict and no constraint",
                param=field,
            )
        return form


def _check_goes_with_calls(guided: GuidedParams | None) -> None:
    """Raise for a constraint that says what the whole answer is, where calls must be all of it.

    OpenAI's own field holds for content: it may be given, and there is no content that breaks it.
    """
    if guided is not None and guided.origin not in _OF_CONTENT:
        raise ParameterError(
            f"{guided.origin}: tool_choice asks for calls and nothing else, which leaves no text "
            "for it; leave one of them out",
            param=guided.origin,
        )


def make_answer_format(
    config: ModelConfig,
    folder: ModelFolder,
    tokenizer: Tokenizer | None,
    host: PluginHost,
    *,
    chat_template: str | None,
) -> AnswerFormat:
    """Make the parsers that the config names, or that plugins choose for it.

    ``chat_template`` is the one that requests with tools are written by.
    """
    model = {
        "architecture": folder.architecture,
        "config": folder.config,
        "chat_template": chat_template,
    }
    tools, reasoning = config.tool_call_parser, config.reasoning_parser
    if tools == AUTO:
        tools = host.hook.select_tool_parser(**model)
    if reasoning == AUTO:
        reasoning = host.hook.select_reasoning_parser(**model)
        log.info("reasoning_parser=auto: %s", reasoning or "none, as no plugin knows its marks")
    why = (
        "tools: how this model writes calls is not known; choose a parser with tool_call_parser="
        f"NAME (--tool-call-parser): {', '.join(host.tool_parsers.names())}"
    )
    chosen = ((host.tool_parsers, tools), (host.reasoning_parsers, reasoning))
    foreign = [
        f"the {registry.kind} {name!r} of plugin {plugin!r}"
        for registry, name in chosen
        if name and host.is_foreign(plugin := registry.info(name).plugin)
    ]
    return AnswerFormat(
        foreign=" and ".join(foreign),
        tool_parser=CheckedToolParser(host.tool_parsers, tools, tokenizer) if tools else None,
        reasoning_parser=CheckedReasoningParser(host.reasoning_parsers, reasoning, tokenizer)
        if reasoning
        else None,
        takes_auto=config.enable_auto_tool_choice,
        without_parser=why if tools is None and config.tool_call_parser == AUTO else None,
    )
