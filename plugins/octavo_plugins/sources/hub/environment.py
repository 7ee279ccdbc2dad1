"""The environment variables of both hubs, all read here."""

from __future__ import annotations

import os
from pathlib import Path

from octavo.environment import OFFLINE, ON, USE_MODELSCOPE
from octavo.errors import ConfigError
from octavo_plugins.sources.hub.hub import HubSettings


def uses_modelscope() -> bool:
    """Whether names are those of ModelScope instead of Hugging Face."""
    return USE_MODELSCOPE.is_on()


def huggingface_settings() -> HubSettings:
    """Read HF_ENDPOINT, HF_HUB_CACHE, HF_HOME, HF_TOKEN, HF_TOKEN_PATH and HF_HUB_OFFLINE."""
    home = _path("HF_HOME", _path("XDG_CACHE_HOME", Path.home() / ".cache") / "huggingface")
    token = os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN")
    token = _checked(token or _read(_path("HF_TOKEN_PATH", home / "token")), "Hugging Face")
    return HubSettings(
        title="Hugging Face",
        endpoint=_endpoint("HF_ENDPOINT", "https://huggingface.co"),
        cache=_path("HF_HUB_CACHE", home / "hub"),
        default_revision="main",
        secrets={"Authorization": f"Bearer {token}"} if token else {},
        how_to_log_in="set HF_TOKEN to a token of an account that may read it",
        offline_by=_offline_by() or _huggingface_offline_by(),
    )


def modelscope_settings() -> HubSettings:
    """Read MODELSCOPE_ENDPOINT, MODELSCOPE_CACHE, MODELSCOPE_API_TOKEN and OCTAVO_OFFLINE."""
    home = _path("XDG_CACHE_HOME", Path.home() / ".cache") / "modelscope"
    token = _checked(os.environ.get("MODELSCOPE_API_TOKEN", ""), "ModelScope")
    return HubSettings(
        title="ModelScope",
        endpoint=_endpoint("MODELSCOPE_ENDPOINT", "https://www.modelscope.cn"),
        cache=_path("MODELSCOPE_CACHE", home) / "octavo",
        default_revision="master",
        secrets={"Cookie": f"m_session_id={token}"} if token else {},
        how_to_log_in="set MODELSCOPE_API_TOKEN to a token of an account that may read it",
        offline_by=_offline_by(),
    )


def _offline_by() -> str | None:
    return f"{OFFLINE.name}={OFFLINE.text()}" if OFFLINE.is_on() else None


def _huggingface_offline_by() -> str | None:
    value = os.environ.get("HF_HUB_OFFLINE", "")
    return f"HF_HUB_OFFLINE={value}" if value.lower() in ON else None


def _path(name: str, default: Path) -> Path:
    return Path(os.environ[name]).expanduser() if os.environ.get(name) else default


def _endpoint(name: str, default: str) -> str:
    url = (os.environ.get(name) or default).rstrip("/")
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"{name}={url!r} must begin with http:// or https://")
    return url


def _checked(token: str, hub: str) -> str:
    """It becomes a header's line, and is never shown."""
    token = token.strip()
    if not (token.isascii() and token.isprintable()):
        raise ConfigError(f"the token for {hub} is none: a line of ASCII is wanted")
    return token


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
