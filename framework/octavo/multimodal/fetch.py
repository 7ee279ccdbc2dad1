"""The bytes behind a URL: data:, http(s): of allowed hosts, file: below an allowed folder."""

from __future__ import annotations

import binascii
from collections.abc import Callable
from pathlib import Path
from typing import Final

from octavo.config.media import MediaConfig
from octavo.multimodal.addresses import resolve
from octavo.multimodal.budget import MediaBudget
from octavo.multimodal.http import Connect, Http, connect
from octavo.multimodal.local import read_below
from octavo_registry.modalities import MediaError

SCHEMES: Final = ("data", "http", "https", "file")
ESCAPES: Final = {
    **{"%2B": "+", "%2b": "+", "%2F": "/", "%2f": "/", "%3D": "=", "%3d": "="},
    **{"%0D": "", "%0d": "", "%0A": "", "%0a": ""},
}
"""Escapes of what base64 is written with. Urllib's function makes an object of each escape:
gigabytes of the longest text. A blank stays an error, as in forms it stands for a +."""


class MediaFetcher:
    """Reads what URLs name, under the rules of a MediaConfig; may be used from several threads.

    ``resolve`` and ``connect`` are what it reaches the network with.
    """

    def __init__(
        self,
        config: MediaConfig,
        *,
        resolve: Callable[[str, int], list[str]] = resolve,
        connect: Connect = connect,
    ) -> None:
        self._folder = config.allowed_local_media_path
        self._http = Http(
            config.allowed_media_domains,
            timeout_seconds=config.media_fetch_timeout,
            resolve=resolve,
            connect=connect,
        )

    def fetch(self, url: str, budget: MediaBudget) -> bytes:
        """Return the bytes, which are counted while they arrive; a MediaError says what is wrong.

        Blocks for ``media_fetch_timeout`` at most, and while a host is looked up.
        """
        scheme = url.partition(":")[0].lower()
        if scheme == "data":
            return _read_data_url(url, budget)
        if scheme in ("http", "https"):
            return self._http.get(url, budget)
        if scheme == "file":
            if self._folder is None:
                raise MediaError("file URLs are not allowed here (--allowed-local-media-path)")
            return read_below(Path(self._folder), url, budget)
        raise MediaError(f"a URL begins with one of: {', '.join(SCHEMES)}")


def decode_base64(text: str, budget: MediaBudget) -> bytes:
    """Return the bytes of base64 text, which may have line breaks, escapes, and no padding."""
    budget.add_encoded(len(text) // 4 * 3)
    if "%" in text:
        for escape, meant in ESCAPES.items():
            text = text.replace(escape, meant)
    text = text.replace("\r", "").replace("\n", "")
    try:
        return binascii.a2b_base64(text + "=" * (-len(text) % 4), strict_mode=True)
    except ValueError as error:  # also what is not ASCII
        raise MediaError(f"it is no valid base64: {error}") from error


def _read_data_url(url: str, budget: MediaBudget) -> bytes:
    head, comma, data = url.partition(",")
    if not comma or not head.lower().endswith(";base64"):
        raise MediaError("a data URL is written data:TYPE;base64,DATA")
    return decode_base64(data, budget)
