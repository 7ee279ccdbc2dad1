"""Addresses, and names that have none, by the resolver of this machine."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from octavo.config.media import MediaConfig
from octavo.multimodal.addresses import is_public
from octavo.multimodal.budget import MediaBudget
from octavo.multimodal.fetch import MediaFetcher
from octavo_registry import MediaError

PUBLIC = ["8.8.8.8", "2606:4700::1111", "64:ff9b::808:808", "::ffff:8.8.8.8", "193.0.6.139"]
PUBLIC += ["2001:200::1", "2001:4860:4860::8888", "168.63.129.15", "168.63.129.17", "3ffd::1"]
PUBLIC += ["192.0.1.1", "192.0.3.1", "198.17.255.255", "198.20.0.0", "223.255.255.255", "1.0.0.0"]


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_not_refused(address) -> None:
    assert is_public(address)


SPECIAL = """
0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24
192.0.0.0/29 192.0.0.8/32 192.0.0.9/32 192.0.0.10/32 192.0.0.170/32 192.0.0.171/32 192.0.0.192/32
192.0.2.0/24 192.31.196.0/24 192.52.193.0/24 192.88.99.0/24 192.168.0.0/16 192.175.48.0/24
198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 240.0.0.0/4 255.255.255.255/32 224.0.0.0/4
168.63.129.16/32 100.100.100.200/32
::1/128 ::/128 ::/96 ::ffff:0:0/104 64:ff9b:1::/48 100::/64 100:0:0:1::/64 2001::/23 2001::/32
2001:1::1/128 2001:1::2/128 2001:1::3/128 2001:2::/48 2001:3::/32 2001:4:112::/48 2001:10::/28
2001:20::/28 2001:30::/28 2001:db8::/32 2002::/16 2620:4f:8000::/48 3fff::/20 5f00::/16 fc00::/7
fe80::/10 fec0::/10 ff00::/8 fd00:ec2::254/128 4000::/3 8000::/1
"""


@pytest.mark.parametrize("network", SPECIAL.split())
def test_no_address_of_a_special_purpose_is_public(network) -> None:
    """By IANA's registries, and addresses of clouds: the first, the last and one between."""
    within = ip_network(network)
    for each in {within[0], within[-1], within[within.num_addresses // 2]}:
        assert not is_public(str(each))
        if each.version == 4:
            for prefix in ("64:ff9b::", "::ffff:", "2002:", "::"):
                inner = f"{int(each) >> 16:x}:{int(each) & 0xFFFF:x}"
                end = "::1" if prefix == "2002:" else ""
                assert not is_public(f"{prefix}{inner}{end}")


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
