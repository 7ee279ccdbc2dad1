"""What one request's media may take, all items together."""

from __future__ import annotations

from collections import Counter
from threading import Lock

from octavo.config.media import MediaConfig
from octavo_registry.modalities import MediaLimitError

MIB = 1 << 20


class MediaBudget:
    """Counts a request's items and bytes as they come; each method raises a MediaLimitError.

    Several threads work on the items of one request.
    """

    def __init__(self, config: MediaConfig) -> None:
        self._config = config
        self._lock = Lock()
        self._items: Counter[str] = Counter()
        self._encoded = 0
        self._decoded = 0

    def add_item(self, modality: str) -> None:
        """Count an item."""
        self._items[modality] += 1
        if self._items.total() > self._config.max_media_items:
            raise MediaLimitError(f"at most {self._config.max_media_items} items in a request")
        most = self._config.max_items(modality)
        if self._items[modality] > most:
            raise MediaLimitError(f"at most {most} of {modality} in a request")

    def check_encoded(self, num_bytes: int) -> None:
        """Check that so many bytes more may be read."""
        if self._encoded + num_bytes > self._config.max_media_mib * MIB:
            raise MediaLimitError(
                f"the media of a request may have {self._config.max_media_mib:g} MiB in all"
            )

    def add_encoded(self, num_bytes: int) -> None:
        """Count bytes read."""
        with self._lock:
            self.check_encoded(num_bytes)
            self._encoded += num_bytes

    def add_decoded(self, num_bytes: int) -> None:
        """Count bytes that a decoded value is about to take."""
        with self._lock:
            self._decoded += num_bytes
            if self._decoded > self._config.max_decoded_media_mib * MIB:
                raise MediaLimitError(
                    "the media of a request may take "
                    f"{self._config.max_decoded_media_mib:g} MiB in all when decoded; send "
                    "smaller or fewer items, or sample fewer frames"
                )
