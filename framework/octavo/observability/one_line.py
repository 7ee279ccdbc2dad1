"""Log records that no text in them can break: one line each."""

from __future__ import annotations

import logging

from octavo.observability.logs import FORMAT


class OneLineFormatter(logging.Formatter):
    """Escapes what could end a record's line or color a terminal, and marks tracebacks' lines."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as one line; lines of its traceback begin with a bar."""
        first, *rest = super().format(record).split("\n")
        if rest and not (record.exc_info or record.exc_text or record.stack_info):
            first, rest = "\\n".join((first, *rest)), []
        return "\n".join([_escaped(first), *(f"  | {_escaped(line)}" for line in rest)])


def _escaped(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\t" else ascii(c)[1:-1] for c in text)


def escape_records() -> None:
    """Make this process's handlers write so, but those that OCTAVO_LOGGING_CONFIG has made."""
    for handler in logging.getLogger().handlers:
        given = handler.formatter
        if given is not None and type(given) is logging.Formatter and given._fmt == FORMAT:
            handler.setFormatter(OneLineFormatter(FORMAT))
