"""Which addresses are somebody else's in public, and not of this machine or its network.

The ranges are those of IANA's registries of special-purpose addresses, all of them: also those that
packets are forwarded to, as nobody keeps media there. Python's own table differs by its version.
"""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

NAT64: Final = IPv6Network("64:ff9b::/96")
"""Its last 32 bits are an IPv4 address."""
GLOBAL: Final = IPv6Network("2000::/3")
"""All that has been given to anybody."""
SPECIAL: Final = (
    IPv4Network("0.0.0.0/8"),  # this network
    IPv4Network("10.0.0.0/8"),  # private
    IPv4Network("100.64.0.0/10"),  # shared by a carrier's customers
    IPv4Network("127.0.0.0/8"),  # loopback
    IPv4Network("168.63.129.16/32"),  # Azure's own host, though the range is public
    IPv4Network("169.254.0.0/16"),  # link-local, and clouds' metadata
    IPv4Network("172.16.0.0/12"),  # private
    IPv4Network("192.0.0.0/24"),  # protocol assignments, and a cloud's metadata
    IPv4Network("192.0.2.0/24"),  # documentation
    IPv4Network("192.31.196.0/24"),  # AS112
    IPv4Network("192.52.193.0/24"),  # AMT
    IPv4Network("192.88.99.0/24"),  # 6to4 relays
    IPv4Network("192.168.0.0/16"),  # private
    IPv4Network("192.175.48.0/24"),  # AS112
    IPv4Network("198.18.0.0/15"),  # benchmarks
    IPv4Network("198.51.100.0/24"),  # documentation
    IPv4Network("203.0.113.0/24"),  # documentation
    IPv4Network("224.0.0.0/4"),  # multicast
    IPv4Network("240.0.0.0/4"),  # reserved, and broadcast
    IPv6Network("2001::/23"),  # protocol assignments: Teredo, ORCHID, benchmarks, ...
    IPv6Network("2001:db8::/32"),  # documentation
    IPv6Network("2002::/16"),  # 6to4, whose relay may stand in this network
    IPv6Network("2620:4f:8000::/48"),  # AS112
    IPv6Network("3ffe::/16"),  # 6bone, given back
    IPv6Network("3fff::/20"),  # documentation
)
"""Networks of version 6 within ``GLOBAL`` that are not public."""


def resolve(host: str, port: int) -> list[str]:
    """Return a host's addresses, from DNS; an OSError where there are none."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def is_public(text: str) -> bool:
    """Whether an address may be connected to; also one that stands for an IPv4 address in it."""
    address = ip_address(text)
    if isinstance(address, IPv6Address):
        if address.scope_id is not None:
            return False
        inner = _inner(address)
        if inner is None and address not in GLOBAL:
            return False
        address = inner or address
    return not any(address in network for network in SPECIAL)


def _inner(address: IPv6Address) -> IPv4Address | None:
    if address in NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped
