"""A chat to answer, and what a request carries besides its prompt and parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.inputs.messages import Message
from octavo.tools.choice import ToolUse, read_tool_use
from octavo_registry import ToolDefinition


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Everything that decides what a model reads of a chat; nothing of it is checked yet."""

    messages: Sequence[Message]
    tools: Sequence[ToolDefinition] | None = None
    tool_choice: str | Mapping[str, Any] | None = None
    """OpenAI's; None means "auto"."""
    parallel_tool_calls: bool | None = None
    """None means True."""
    documents: Sequence[Mapping[str, Any]] | None = None
    chat_template: str | None = None
    """Jinja source or the name of one of the model's templates, never a file: requests of strangers
    end here."""
    chat_template_kwargs: Mapping[str, Any] | None = None
    add_generation_prompt: bool | None = None
    """None means True, unless the final message is continued."""
    continue_final_message: bool = False
    mm_processor_kwargs: Mapping[str, Any] | None = None
    strict: bool = False
    """Raise for what the template would drop without a word, make a developer's messages the
    system's where it knows no developer, and take ``chat_template`` for a stranger's, which runs
    under limits in another process."""

    def tool_use(self) -> ToolUse | None:
        """Check the tools and the choice among them; None: there is no use for tools."""
        return read_tool_use(self.tools, self.tool_choice, self.parallel_tool_calls)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """How the engine is to treat one request."""

    request_id: str
    priority: int = 0
    cache_salt: str = ""
    adapter: str = ""
    """The adapter's content hash; "" is none."""
