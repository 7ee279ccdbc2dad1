"""Words that messages share."""

from __future__ import annotations

from collections.abc import Sequence

MAX_LISTED = 10


def counted(number: int, one: str, many: str | None = None) -> str:
    """Return ``1 token`` or ``2,048 tokens``; ``many`` is for words that take more than an s."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def listed(names: Sequence[str]) -> str:
    """Return the first names, each on one line whatever is in it, and how many more there are."""
    first = ", ".join(" ".join(name.split())[:200] for name in names[:MAX_LISTED])
    return first if len(names) <= MAX_LISTED else f"{first} and {len(names) - MAX_LISTED:,} more"


def most_tokens(max_model_len: int) -> str:
    """What an error says of a prompt that is too long.

    Clients know it by these words of OpenAI's, and by "prompt is too long" of Anthropic's: they
    shorten the conversation and ask again.
    """
    return f"this model's maximum context length is {max_model_len} tokens"


def shown(value: object) -> str:
    """A value on one line of a message."""
    try:
        return " ".join(repr(value).split())[:80]
    except ValueError:  # Python prints no integer of many thousand digits
        return f"<{type(value).__name__}>"
