"""Where a server listens, and what that needs: addresses, certificates, file descriptors."""

from __future__ import annotations

import resource
import socket
from contextlib import suppress
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Any, Final

from octavo.config.server import LimitConfig, ListenConfig
from octavo.errors import ConfigError
from octavo.server.http.certificates import check_certificates

BACKLOG: Final = 2048
SPARE_FILES: Final = 128
"""Descriptors that are no client's connection."""


def bind(listen: ListenConfig, count: int = 1) -> list[socket.socket]:
    """Take the address before the model is loaded: a port in use is known at once.

    Several processes get a socket each, among which the kernel deals connections out. A Unix
    domain socket is one: its processes take turns.
    """
    check_certificates(listen)
    if listen.uds is not None:
        return [_bind_uds(listen.uds)] * count
    first = _bind_port(listen.host, listen.port, is_shared=False)
    if count == 1:
        return [first]
    # Sharing must be asked for by all: the first socket has shown that nobody else is there.
    port = first.getsockname()[1]
    first.close()
    return [_bind_port(listen.host, port, is_shared=True) for _ in range(count)]


def bind_another(listen: ListenConfig, first: socket.socket, port: int) -> socket.socket:
    """Return a socket for a process that comes later, which is dealt no connections until then."""
    if listen.uds is not None:
        return first.dup()
    return _bind_port(listen.host, port, is_shared=True, listens=False)


def _bind_port(host: str, port: int, *, is_shared: bool, listens: bool = True) -> socket.socket:
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if is_shared:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return _bound(made, (host, port), "choose another --port", listens=listens)


def _bind_uds(path: str) -> socket.socket:
    if Path(path).is_socket():
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, suppress(OSError):
            probe.connect(path)
            raise ConfigError(f"another process listens at {path}; choose another --uds")
        with suppress(OSError):
            Path(path).unlink()  # a server that was killed has left it
    return _bound(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), path, "choose another --uds")


def _bound(
    made: socket.socket, address: Any, advice: str, *, listens: bool = True
) -> socket.socket:
    try:
        made.bind(address)
        if listens:
            made.listen(BACKLOG)
    except (OSError, OverflowError, UnicodeError) as error:
        made.close()
        raise ConfigError(f"cannot listen at {address}: {error}; {advice}") from error
    return made


def unbind(listen: ListenConfig, listeners: list[socket.socket]) -> None:
    """Close the sockets, and remove a Unix domain socket's file."""
    for listener in listeners:
        listener.close()
    if listen.uds is not None:
        Path(listen.uds).unlink(missing_ok=True)


def allow_files(limits: LimitConfig) -> None:
    """Let this process have as many files as it may have connections; else a ConfigError."""
    wanted = limits.max_connections + SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise ConfigError(
            f"max_connections={limits.max_connections} needs {wanted} open files, and this process "
            f"may have {hard}; raise ulimit -n, or lower --max-connections"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def is_local(listener: socket.socket) -> bool:
    """Whether it listens at a loopback address; a Unix domain socket is for whom its file is."""
    return listener.family != socket.AF_UNIX and is_loopback(listener.getsockname()[0])


def is_loopback(host: str) -> bool:
    """Whether a name or an address leads to this machine alone, wherever it is asked."""
    name = host.removesuffix(".").lower()
    if name == "localhost" or name.endswith(".localhost"):  # which nobody can register
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


def url_of(listen: ListenConfig, listener: socket.socket) -> str:
    """What a client of this server is given."""
    if listen.uds is not None:
        return f"unix:{listen.uds}"
    scheme = "https" if listen.ssl_certfile else "http"
    host, port = listener.getsockname()[:2]
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}{listen.root_path}"
