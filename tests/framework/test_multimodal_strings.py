"""A modality whose items are strings, which look like URLs and paths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

from octavo.config.media import MediaConfig
from octavo.multimodal.reader import MediaReader
from octavo_registry import MediaLimits, PluginHost


class WordDecoder:
    """A string is an item, and a tuple of some is one as well."""

    def decode(self, data: bytes, limits: MediaLimits, options: Mapping[str, Any]) -> str:
        return data.decode()

    def convert(self, given: Any, limits: MediaLimits, options: Mapping[str, Any]) -> str:
        return given if isinstance(given, str) else " ".join(given)

    def is_item(self, given: Any) -> bool:
        return isinstance(given, tuple)

    def content(self, value: str) -> Iterator[bytes]:
        yield value.encode()


def test_a_string_is_an_item_where_the_modality_says_so() -> None:
    host = PluginHost()
    host.modalities.add("words", f"{__name__}:WordDecoder", strings=True)
    with closing(MediaReader(host, MediaConfig())) as reader:
        for given, expected in (
            ("https://a.b/c", ["https://a.b/c"]),
            (["/etc/hosts", "data:,x"], ["/etc/hosts", "data:,x"]),
            (("a", "b"), ["a b"]),
            (b"bytes", ["bytes"]),
        ):
            items = reader.read_blocking(reader.split({"words": given}), {})
            assert [item.value for item in items] == expected
