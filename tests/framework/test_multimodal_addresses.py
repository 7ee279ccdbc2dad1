"""Addresses, and names that have none, by the resolver of this machine."""

from __future__ import annotations

import pytest

from octavo.config.media import MediaConfig
from octavo.multimodal.addresses import is_public
from octavo.multimodal.budget import MediaBudget
from octavo.multimodal.fetch import MediaFetcher
from octavo_registry import MediaError


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "64:ff9b::808:808"])
def test_a_public_address_is_not_refused(address) -> None:
    assert is_public(address)


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "2130706433", "0x7f.1", "localhost"])
def test_a_private_address_is_refused_even_where_its_name_is_allowed(host) -> None:
    """With the resolver of this machine, which understands all spellings of an address."""
    name = host.strip("[]")
    domains = () if ":" in name else (name,)
    config = MediaConfig(allowed_media_domains=domains)
    connected: list[object] = []
    reads = MediaFetcher(config, connect=lambda *to: connected.append(to))  # type: ignore
    with pytest.raises(MediaError):
        reads.fetch(f"http://{host}/", MediaBudget(config))
    assert connected == []


@pytest.mark.parametrize("host", ["a..example", "a" * 64 + ".example"])
def test_a_host_that_is_no_name_is_the_requests_fault(host) -> None:
    """With the resolver of this machine, which raises a UnicodeError."""
    config = MediaConfig(allowed_media_domains=("*.example",))
    reads = MediaFetcher(config, connect=lambda *to: None)  # type: ignore
    with pytest.raises(MediaError, match=r"cannot be read"):
        reads.fetch(f"http://{host}/", MediaBudget(config))
