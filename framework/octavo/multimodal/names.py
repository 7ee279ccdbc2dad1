"""What users call the items that they have sent."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock


class Names:
    """The content that each name stood for last; the names used last are kept. From any thread."""

    def __init__(self, max_names: int) -> None:
        self._max_names = max_names
        self._lock = Lock()
        self._kept: OrderedDict[Hashable, str] = OrderedDict()

    def get(self, name: Hashable) -> str | None:
        """Return the hash of the content."""
        with self._lock:
            if name in self._kept:
                self._kept.move_to_end(name)
            return self._kept.get(name)

    def put(self, name: Hashable, content_hash: str) -> None:
        """From now on the name stands for this content."""
        with self._lock:
            self._kept[name] = content_hash
            self._kept.move_to_end(name)
            while len(self._kept) > self._max_names:
                self._kept.popitem(last=False)
