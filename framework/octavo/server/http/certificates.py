"""TLS certificates: checked at the start, and read again when their files change."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import Final

from octavo.config.server import ListenConfig
from octavo.errors import ConfigError

log = logging.getLogger(__name__)

TICKS: Final = 10
"""Tenths of a second between looks at the files."""
Stamp = tuple[tuple[int, int], ...]


def check_certificates(listen: ListenConfig) -> None:
    """Raise ConfigError for certificates or ciphers that cannot be used."""
    if listen.ssl_certfile is None:
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        load_certificates(context, listen)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"ssl_certfile={listen.ssl_certfile!r}, ssl_keyfile={listen.ssl_keyfile!r}, "
            f"ssl_ca_certs={listen.ssl_ca_certs!r} cannot be used: {error}"
        ) from error
    try:
        if listen.ssl_ciphers is not None:
            context.set_ciphers(listen.ssl_ciphers)
    except ssl.SSLError as error:
        raise ConfigError(f"ssl_ciphers={listen.ssl_ciphers!r}: {error}") from error


def load_certificates(context: ssl.SSLContext, listen: ListenConfig) -> None:
    """Put the files into a context; an OSError or ValueError leaves it as it was."""
    assert listen.ssl_certfile is not None  # there is TLS
    password = listen.ssl_keyfile_password
    # Without a function, an encrypted key would make OpenSSL ask at the terminal.
    context.load_cert_chain(listen.ssl_certfile, listen.ssl_keyfile, lambda: password or "")
    if listen.ssl_ca_certs is not None:
        context.load_verify_locations(listen.ssl_ca_certs)


class CertificateWatch:
    """Loads certificates that have changed into a context that connections are made with."""

    def __init__(self, context: ssl.SSLContext, listen: ListenConfig) -> None:
        self._context = context
        self._listen = listen
        self._seen = self._stamp()

    def look(self) -> None:
        """Load the files if they are not those that were loaded; what cannot be used is logged."""
        stamp = self._stamp()
        if stamp == self._seen:
            return
        self._seen = stamp
        try:
            # A certificate of one pair and the key of another must not end what works.
            load_certificates(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self._listen)
            load_certificates(self._context, self._listen)
        except (OSError, ValueError) as error:
            log.warning("the certificates have changed and cannot be used yet: %s", error)
        else:
            log.info("the certificates have changed and were read again")

    def _stamp(self) -> Stamp | None:
        listen = self._listen
        names = (listen.ssl_certfile, listen.ssl_keyfile, listen.ssl_ca_certs)
        try:
            found = [Path(name).stat() for name in names if name is not None]
        except OSError:
            return None  # one is being replaced
        return tuple((each.st_mtime_ns, each.st_ino) for each in found)
