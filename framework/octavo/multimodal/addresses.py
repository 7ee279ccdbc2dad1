"""Which addresses are somebody else's in public, and not of this machine or its network."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Final

NAT64: Final = IPv6Network("64:ff9b::/96")


def resolve(host: str, port: int) -> list[str]:
    """Return a host's addresses, from DNS; an OSError where there are none."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def is_public(text: str) -> bool:
    """Whether an address may be connected to; also one that stands for an IPv4 address in it."""
    address = ip_address(text.partition("%")[0])
    inner = _inner(address)
    if inner is not None:
        return is_public(str(inner))
    if isinstance(address, IPv6Address) and address.is_site_local:
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def _inner(address: IPv4Address | IPv6Address) -> IPv4Address | None:
    if isinstance(address, IPv4Address):
        return None
    if address in NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    teredo = address.teredo
    return address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo else None)
