"""What the model reads and writes: messages, tools, and the chat template that joins them.

``render`` and ``CHAT_TEMPLATE`` give the same text; the first also tells which parts of it are the
model's own, and is fast enough to write a training corpus with.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

END_OF_TEXT, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CALL, END_OF_CALL = "<tool_call>", "</tool_call>"
TOOLS_HEADING = "Tools:\n"

CHAT_TEMPLATE = (Path(__file__).parent / "chat_template.jinja").read_text()


@dataclass(frozen=True)
class Field:
    """An argument of a tool, or an entry of a JSON object."""

    name: str
    type: str = "string"
    choices: tuple[str, ...] = ()
    required: bool = True

    def as_schema(self) -> dict[str, Any]:
        if self.choices:
            return {"type": "string", "enum": list(self.choices)}
        if self.type == "array":
            return {"type": "array", "items": {"type": "string"}}
        return {"type": self.type}

    def as_text(self) -> str:
        """As the chat template writes it."""
        kind = " | ".join(map(json.dumps, self.choices)) or self.type
        kind = "string[]" if kind == "array" else kind
        return f"{self.name}{'' if self.required else '?'}: {kind}"


def object_schema(fields: Sequence[Field]) -> dict[str, Any]:
    """JSON Schema of an object with these fields."""
    return {
        "type": "object",
        "properties": {field.name: field.as_schema() for field in fields},
        "required": [field.name for field in fields if field.required],
    }


@dataclass(frozen=True)
class Tool:
    name: str
    description: str = ""
    fields: tuple[Field, ...] = ()

    def as_openai(self) -> dict[str, Any]:
        """As requests give it."""
        parameters = object_schema(self.fields)
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}

    def as_text(self) -> str:
        """As the chat template writes it."""
        text = f"{self.name}({', '.join(field.as_text() for field in self.fields)})"
        return f"{text} {self.description}" if self.description else text


def call_text(name: str, arguments: dict[str, Any]) -> str:
    """A tool call, as the model writes it."""
    call = {"name": name, "arguments": arguments}
    return f"{CALL}\n{json.dumps(call, ensure_ascii=False)}\n{END_OF_CALL}"


@dataclass(frozen=True)
class Turn:
    """One message; an assistant's tool calls are part of its content."""

    role: str
    content: str


@dataclass(frozen=True)
class Piece:
    """Part of a document; ``learn`` is true of what the model itself is to write."""

    text: str
    learn: bool


@dataclass
class Chat:
    turns: list[Turn]
    tools: list[Tool] = field(default_factory=list)
    system: str = ""


def render(chat: Chat) -> list[Piece]:
    """The chat's text in pieces that tokenize by themselves."""
    pieces: list[Piece] = []
    head = chat.system
    if chat.tools:
        head += "\n" if head else ""
        head += TOOLS_HEADING + "\n".join(tool.as_text() for tool in chat.tools)
    prompt = f"{START}system\n{head}{END}\n" if head else ""
    for turn in chat.turns:
        if turn.role != "assistant":
            prompt += f"{START}{turn.role}\n{turn.content}{END}\n"
            continue
        pieces.append(Piece(f"{prompt}{START}assistant\n", learn=False))
        pieces.append(Piece(f"{turn.content}{END}", learn=True))
        prompt = "\n"
    return pieces
