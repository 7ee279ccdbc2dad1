"""What a chat renderer writes for messages."""

from __future__ import annotations

from typing import Any

from octavo.inputs import ChatRenderer, Conversation


def rendered(renderer: ChatRenderer, messages: Any, **options: Any) -> str:
    """The text of a conversation; ``options`` are fields of ``Conversation``."""
    return renderer.render(Conversation(messages=messages, **options)).text
