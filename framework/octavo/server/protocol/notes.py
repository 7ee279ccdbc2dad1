"""Notes: what a request has that has no effect here, and who is told of it."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

import msgspec

from octavo.observability.metrics import Counter
from octavo.server.http.errors import HttpError
from octavo.wording import shown
from octavo_registry.naming import close_or_known, meant

log = logging.getLogger(__name__)

HEADER: Final = b"x-octavo-warnings"
NO_EFFECT: Final = "has no effect"
MAX_NOTES: Final = 32
"""Most notes of one request that are told; more are counted."""
MAX_UNKNOWN: Final = 64
"""Most names that are compared with all known ones, which takes some 0.2 ms each."""
_OF_OTHER_BODIES: Final = frozenset(
    ("conversation_id", "ec_transfer_params", "files", "images", "inference_geos", "inputs",
     "languages", "max_tokens", "min_tokens", "mode", "models", "operation", "requests", "seed",
     "service_tiers", "session", "session_ids", "speed", "speeds", "token", "top_a",
     "user_profile_ids", "workspace_ids", "workspaces")
)  # fmt: skip
"""Fields that other routes or servers have: they are no slips of those that are near."""
_WITHIN_OTHERS: Final = frozenset(
    ("code", "consent", "content", "context", "file_ids", "files", "model", "sources",
     "tool", "tool_call_id", "tool_calls")
)  # fmt: skip
"""Keys that objects within bodies have elsewhere, and that are no slips either."""
_MAX_HEADER_BYTES: Final = 1024
_MAX_LOGGED: Final = 1024
"""Pairs of a field and a client that the log has told of; the oldest is forgotten."""
_MAX_HINT_CHARS: Final = 200
"""All of the known names, where none is near, are more than anybody reads."""
_UNLISTED: Final = "(unknown)"
"""What metrics call every field that is in no list: clients must not make new labels."""
_INDEX: Final = re.compile(r"\[\d+\]")


class Note(NamedTuple):
    """One field that has no effect."""

    path: str
    """Without indices."""
    text: str
    """What is told of it."""
    is_listed: bool = True
    """Whether a list of ours has it; clients may make up the others."""


class Notes:
    """The fields of one request that have no effect, each once however often it is there."""

    def __init__(self, *, refuses: bool = False) -> None:
        """``refuses``: an unknown field is an error, as ``--unknown-fields refuse`` says."""
        self._refuses = refuses
        self._made: dict[tuple[str, str], Note] = {}
        """Notes by path and what is said of it."""
        self._num_unknown = 0

    def __bool__(self) -> bool:
        return bool(self._made)

    def __iter__(self) -> Iterator[Note]:
        return iter(self._made.values())

    def add(self, field: str, why: str = NO_EFFECT) -> None:
        """Note a field of a list of ours; ``field`` is its path, which may have indices."""
        path = _path(field)
        if (path, why) not in self._made and len(self._made) < MAX_UNKNOWN:
            self._made[path, why] = Note(path, f"{field} {why}")

    def unknown(self, name: str, known: Collection[str], where: str = "") -> None:
        """Note a name that no list has; raises for one that is almost one of the ``known``.

        ``where`` is the path of the object that has it, "" the body itself.
        """
        path = _path(f"{where}.{name[:64]}" if where else name[:64])
        if (path, "") in self._made:
            return
        place = where or "this request"
        param = re.split(r"[.\[]", where)[0] or name[:64]
        is_real = name in (_WITHIN_OTHERS if where else _OF_OTHER_BODIES)
        if self._refuses or (not is_real and meant(name, known, surely=True)):
            text = f"{shown(name)} is no field of {place}{_hint(name, known)}"
            raise HttpError(400, text, param=param, code="unknown_field")
        self._num_unknown += 1
        if self._num_unknown > MAX_UNKNOWN:
            raise HttpError(
                400, f"more than {MAX_UNKNOWN} unknown fields", param=param, code="unknown_field"
            )
        text = f"{shown(name)} is no field of {place} and {NO_EFFECT}"
        self._made[path, ""] = Note(path, text, is_listed=False)

    def texts(self) -> list[str]:
        """What the client is told, in the order in which it was found."""
        told = [note.text for note in self]
        if len(told) > MAX_NOTES:
            told[MAX_NOTES:] = [f"and {len(told) - MAX_NOTES} more have no effect"]
        return told

    def headers(self) -> list[tuple[bytes, bytes]]:
        """The header that tells of them; none when there are none."""
        if not self:
            return []
        told = "; ".join(self.texts()).encode("ascii", "backslashreplace")
        if len(told) > _MAX_HEADER_BYTES:
            told = told[:_MAX_HEADER_BYTES] + b"..."
        return [(HEADER, told)]


def told(notes: Notes) -> list[str] | msgspec.UnsetType:
    """What a body says of them under ``warnings``; it says nothing when there are none."""
    return notes.texts() or msgspec.UNSET


class NoteLog:
    """Tells a server's operator of the notes of all requests, each field and client once."""

    def __init__(self, *, refuses: bool = False) -> None:
        """``refuses``: unknown fields are errors."""
        self.counter = Counter(
            "noted_fields_total",
            "Fields of requests that had no effect; those that are in no list have one name.",
            ("field",),
        )
        self.counter.add(0, (_UNLISTED,))  # so that dashboards find it
        self._refuses = refuses
        self._told: dict[tuple[str, str], bool] = {}

    def begin(self) -> Notes:
        """Return what a new request's notes go to."""
        return Notes(refuses=self._refuses)

    def tell(self, notes: Notes, client: str) -> None:
        """Count the notes, and log those that are new; ``client`` is what it calls itself."""
        client = client[:64]
        for number, note in enumerate(notes):
            self.counter.add(1, (note.path if note.is_listed else _UNLISTED,))
            if number < MAX_NOTES and self._is_new(client, note.path):
                log.warning("noted: %s (client %s)", note.text, shown(client))

    def _is_new(self, client: str, path: str) -> bool:
        is_new = self._told.pop((client, path), None) is None
        self._told[client, path] = True  # as the youngest
        if len(self._told) > _MAX_LOGGED:
            del self._told[next(iter(self._told))]
        return is_new


def _path(field: str) -> str:
    return _INDEX.sub("", field)


def _hint(name: str, known: Collection[str]) -> str:
    hint = close_or_known(name, known)
    return f"; {hint}" if len(hint) < _MAX_HINT_CHARS else ""
