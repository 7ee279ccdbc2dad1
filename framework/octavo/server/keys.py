"""The keys that clients must send."""

from __future__ import annotations

import os
from pathlib import Path

from octavo.config.server import AccessConfig, check_key
from octavo.environment import API_KEY, VLLM_API_KEY
from octavo.errors import ConfigError


def api_keys(access: AccessConfig) -> tuple[str, ...]:
    """All keys: given, in a file, and in the environment. A source without a key is an error."""
    keys = list(access.api_key)
    if access.api_key_file is not None:
        keys += _in_file(access.api_key_file)
    if API_KEY.is_set():
        # Set and empty is a secret that was not found: an open server is not what was meant.
        key = API_KEY.text() or ""
        check_key(key, API_KEY.name)
        keys.append(key)
    if not keys and VLLM_API_KEY in os.environ:
        raise ConfigError(
            f"{VLLM_API_KEY} is set and not read, so everybody could ask; set {API_KEY.name}, or "
            "give --api-key or --api-key-file"
        )
    return tuple(dict.fromkeys(keys))


def _in_file(path: str) -> list[str]:
    try:
        keys = Path(path).read_text().split()
    except (OSError, ValueError) as error:
        raise ConfigError(f"api_key_file={path!r}: {error}") from error
    if not keys:
        raise ConfigError(f"api_key_file={path!r} holds no key")
    for key in keys:
        check_key(key, f"each line of api_key_file={path!r}")
    return keys
