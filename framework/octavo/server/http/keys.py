"""The keys that clients must send, and those of the operator."""

from __future__ import annotations

import hmac
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from octavo.config.server import AccessConfig, check_key
from octavo.environment import ADMIN_KEY, API_KEY, VLLM_API_KEY, Variable
from octavo.errors import ConfigError


@dataclass(frozen=True)
class Keys:
    """Who may ask: anybody without keys, but where an operator has one for what only they may."""

    users: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    """Each is a user's key, too."""

    def open(self, given: bytes) -> bool:
        """Whether a request with this key, which is empty without one, may ask."""
        return not self.users or _is_one_of(given, self._all)

    def open_all(self, given: bytes) -> bool:
        """Whether it may also ask for what is the operator's."""
        return not self._all or _is_one_of(given, self._operators)

    @cached_property
    def _operators(self) -> list[bytes]:
        return [key.encode() for key in self.operators]

    @cached_property
    def _all(self) -> list[bytes]:
        return [key.encode() for key in (*self.users, *self.operators)]


NO_KEYS: Final = Keys()


def read_keys(access: AccessConfig) -> Keys:
    """All keys: given, in files, and in the environment. A source without a key is an error."""
    users = _keys(access.api_key, "api_key_file", access.api_key_file, API_KEY)
    operators = _keys(access.admin_key, "admin_key_file", access.admin_key_file, ADMIN_KEY)
    if not users and VLLM_API_KEY in os.environ:
        raise ConfigError(
            f"{VLLM_API_KEY} is set and not read, so everybody could ask; set {API_KEY.name}, or "
            "give --api-key or --api-key-file"
        )
    if not set(users).isdisjoint(operators):
        raise ConfigError("a key of admin_key must be none of api_key, whose clients have it")
    return Keys(users, operators)


def _keys(given: tuple[str, ...], name: str, file: str | None, named: Variable) -> tuple[str, ...]:
    keys = list(given)
    if file is not None:
        keys += _in_file(name, file)
    if named.is_set():
        # Set and empty is a secret that was not found: an open server is not what was meant.
        key = named.text() or ""
        check_key(key, named.name)
        keys.append(key)
    return tuple(dict.fromkeys(keys))


def _in_file(name: str, path: str) -> list[str]:
    try:
        keys = Path(path).read_text().split()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{name}={path!r}: {error}") from error
    if not keys:
        raise ConfigError(f"{name}={path!r} holds no key")
    for key in keys:
        check_key(key, f"each line of {name}={path!r}")
    return keys


def _is_one_of(given: bytes, keys: Sequence[bytes]) -> bool:
    """Each key is compared, and each in constant time."""
    return sum(hmac.compare_digest(given, key) for key in keys) > 0
