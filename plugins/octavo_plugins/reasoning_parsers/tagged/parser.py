"""``<think>reasoning</think>content``: one reader, and what each format says of its tags."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from octavo.tools import Reader, Reading, Stream
from octavo_registry import ParserStream, ToolDefinition
from octavo_registry.structure import Chain, Literal, OneOf, Structure, TextUntil

_TURNS = (
    "<|im_start|>assistant",
    "<｜Assistant｜>",
    "<|assistant|>",
    "<|im_assistant|>assistant<|im_middle|>",
    "]~b]ai",
    "[/INST]",
    "[/TOOL_RESULTS]",
    "<|start_of_role|>assistant<|end_of_role|>",
    "<|start_header_id|>assistant<|end_header_id|>",
    "<|turn>model",
)
"""What prompts write before a model's answer."""


class TaggedReasoningParser:
    """What begins a text, or ends a prompt, with an opening tag is reasoning up to a closing one.

    Only there tags are tags, so that an answer may speak of them. A call ends reasoning that was
    not closed.
    """

    opens: tuple[str, ...] = ("<think>",)
    closes: tuple[str, ...] = ("</think>",)
    calls: tuple[str, ...] = ()
    """Tags that begin calls."""
    before_name: str = ""
    """Characters of which one follows such a tag, but for white space; none: any may."""
    usually_begun = True
    """Whether a text with an unknown prompt begins inside the reasoning."""
    opens_later = False
    """Whether content may come before the reasoning."""
    closes_again = False
    """Whether closing tags are no text in the answer either, up to a call."""
    samples: Sequence[str] = (
        "<think>The user greets.\nShort.</think>\n\nHello!",
        "Let me see.</think>It is 4.",
        "<think>\n\n</think>\n\nYes.",
        "<think>first</think>\n<think>then</think></think>Done: `<think>` and `</think>`.",
    )

    @property
    def markers(self) -> Sequence[str]:
        """The tags."""
        return (*self.opens, *self.closes)

    def __init__(self, tokenizer: object = None) -> None:
        """No tokenizer is needed."""

    def stream(
        self, tools: Sequence[ToolDefinition] | None = None, *, prompt: str | None = None
    ) -> ParserStream:
        """Begin a message; whether it begins inside the reasoning, the prompt's end tells."""
        begun = self.usually_begun if prompt is None else self._state(prompt) is True
        return Stream(partial(self._message, begun))

    def before_answer(self, prompt: str) -> Structure | None:
        """Return reasoning that may or must come, None where the prompt has closed it."""
        begun = self._state(prompt)
        rest = TextUntil(self.closes)
        if begun is None:
            whole = Chain((OneOf((Literal(""), Literal("\n"))), Literal(self.opens[0]), rest))
            return OneOf((whole, Literal("")))
        return rest if begun else None

    def _state(self, prompt: str) -> bool | None:
        """Return whether the prompt's end is inside the reasoning; None: it has not begun."""
        answer_at = max((_end_of_last(prompt, turn) for turn in _TURNS), default=0)
        answer = prompt[answer_at:]
        opened = max(_end_of_last(answer, tag) for tag in self.opens)
        closed = max(_end_of_last(answer, tag) for tag in self.closes)
        return opened > closed if opened or closed else None

    def _message(self, begun: bool, reader: Reader) -> Reading[None]:
        while True:
            space = yield from reader.take_while(r"\s")
            tag = yield from reader.literal(*self.opens, *self.closes)
            if tag in self.opens or (begun and tag is None):
                reader.reasoning("" if tag else space)
                if not (yield from self._reasoning(reader)):
                    return
            elif tag is None:
                reader.content(space)
                break
            begun = False
        tag = yield from self._content(reader)
        if tag in self.opens and (yield from self._reasoning(reader)):
            yield from self._content(reader)

    def _reasoning(self, reader: Reader) -> Reading[bool]:
        """Pass on reasoning; return whether it was closed."""
        while True:
            tag = yield from reader.text_until(*self.closes, *self.calls, to=reader.reasoning)
            if tag is None or tag in self.closes:
                return tag is not None
            space = yield from reader.take_while(r"\s")
            character = yield from reader.peek()
            if not self.before_name or character in self.before_name:
                reader.content(tag + space)
                return False
            reader.reasoning(tag + space)

    def _content(self, reader: Reader) -> Reading[str | None]:
        """Pass on content while tags may come that are none of it; return an opening one."""
        closes = self.closes if self.closes_again else ()
        opens = self.opens if self.opens_later else ()
        while tag := (yield from reader.text_until(*closes, *opens, *self.calls)):
            if tag in self.calls:
                reader.content(tag)
                return None
            if tag in opens:
                return tag
        return None


class DeepSeekR1Parser(TaggedReasoningParser):
    """DeepSeek R1 and its distillates: their templates open the reasoning."""

    calls = ("<｜tool▁calls▁begin｜>",)


class DeepSeekV3Parser(DeepSeekR1Parser):
    """DeepSeek V3.1 and V3.2: their templates open or close the reasoning, by a switch."""

    usually_begun = False

    def before_answer(self, prompt: str) -> Structure | None:
        """Return the rest of reasoning that the prompt has opened; the model opens none."""
        return TextUntil(self.closes) if self._state(prompt) else None


class Gemma4Parser(TaggedReasoningParser):
    """Gemma 4: the model opens the reasoning; switched off, the template closes it."""

    opens, closes = ("<|channel>thought\n", "<|channel>thought", "<|channel>"), ("<channel|>",)
    calls = ("<|tool_call>",)
    usually_begun = False
    closes_again = True
    samples = (
        "<|channel>thought\nTwo and two.\n<channel|>It is 4.",
        "<|channel>thought\n<channel|>Just 4.",
        "<|channel>thought\nI call it.<|tool_call>call:now{}<tool_call|>",
    )


class Qwen3Parser(TaggedReasoningParser):
    """Qwen 3 and later: the template opens it, closes it, or leaves that to the model."""

    calls = ("<tool_call>",)
    before_name = "{<"
    closes_again = True


class Glm45Parser(TaggedReasoningParser):
    """GLM 4.5 and later: the model opens the reasoning; switched off, the template closes it."""

    calls = ("<tool_call>",)
    closes_again = True


class KimiK2Parser(TaggedReasoningParser):
    """Kimi K2 Thinking."""

    calls = ("<|tool_calls_section_begin|>",)


class MiniMaxM2Parser(TaggedReasoningParser):
    """MiniMax M2: the template always opens the reasoning."""

    calls = ("<minimax:tool_call>",)
    closes_again = True


class MistralParser(TaggedReasoningParser):
    """Magistral and later reasoning models of Mistral."""

    opens, closes = ("[THINK]",), ("[/THINK]",)
    calls = ("[TOOL_CALLS]",)
    usually_begun = False
    opens_later = True
    closes_again = True
    samples = (
        "[THINK]Two and two.[/THINK]It is 4.",
        "First: [THINK]hm[/THINK]4.",
        "Just 4.",
        "[THINK]I call it.[TOOL_CALLS]now[ARGS]{}",
    )


class GraniteParser(TaggedReasoningParser):
    """Granite 3.2: sentences stand for tags, and the system's prompt asks for them."""

    opens = ("Here is my thought process:", "Here's my thought process:")
    closes = ("Here is my response:", "Here's my response:")
    usually_begun = False
    markers = ()
    samples = (
        "Here is my thought process: a sum.\n\nHere is my response: 4.",
        "Here's my thought process:\nHere it is.\nHere's my response:\n4.",
        "Here is my answer.",
    )

    def before_answer(self, prompt: str) -> Structure | None:
        """Return reasoning, unless the prompt does not ask for any."""
        return super().before_answer(prompt) if self.opens[0] in prompt else None


def _end_of_last(text: str, tag: str) -> int:
    """Return where the last of these tags ends, 0 if there is none."""
    at = text.rfind(tag)
    return at + len(tag) if at >= 0 else 0
