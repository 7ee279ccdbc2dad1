"""The environment variables of both hubs, all read here."""

from __future__ import annotations

import os
from pathlib import Path

from octavo_plugins.sources.hub.hub import HubSettings


def uses_modelscope() -> bool:
    """Whether names are those of ModelScope instead of Hugging Face."""
    return _is_on("OCTAVO_USE_MODELSCOPE")


def huggingface_settings() -> HubSettings:
    """By HF_ENDPOINT, HF_HUB_CACHE, HF_HOME, HF_TOKEN, HF_TOKEN_PATH and HF_HUB_OFFLINE."""
    home = _path("HF_HOME", _path("XDG_CACHE_HOME", Path.home() / ".cache") / "huggingface")
    token = os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN")
    if not token:
        token = _read(_path("HF_TOKEN_PATH", home / "token"))
    return HubSettings(
        title="Hugging Face",
        endpoint=os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/"),
        cache=_path("HF_HUB_CACHE", home / "hub"),
        default_revision="main",
        secrets={"Authorization": f"Bearer {token.strip()}"} if token else {},
        how_to_log_in="set HF_TOKEN to a token of an account that may read it",
        offline_by=_first_on("HF_HUB_OFFLINE", "OCTAVO_OFFLINE"),
    )


def modelscope_settings() -> HubSettings:
    """By MODELSCOPE_ENDPOINT, MODELSCOPE_CACHE, MODELSCOPE_API_TOKEN and OCTAVO_OFFLINE."""
    home = _path("XDG_CACHE_HOME", Path.home() / ".cache") / "modelscope"
    token = os.environ.get("MODELSCOPE_API_TOKEN", "").strip()
    return HubSettings(
        title="ModelScope",
        endpoint=os.environ.get("MODELSCOPE_ENDPOINT", "https://www.modelscope.cn").rstrip("/"),
        cache=_path("MODELSCOPE_CACHE", home) / "octavo",
        default_revision="master",
        secrets={"Cookie": f"m_session_id={token}"} if token else {},
        how_to_log_in="set MODELSCOPE_API_TOKEN to a token of an account that may read it",
        offline_by=_first_on("OCTAVO_OFFLINE"),
    )


def _is_on(name: str) -> bool:
    return os.environ.get(name, "").lower() in ("1", "true", "yes", "on")


def _first_on(*names: str) -> str | None:
    return next((f"{name}={os.environ[name]}" for name in names if _is_on(name)), None)


def _path(name: str, default: Path) -> Path:
    return Path(os.environ[name]).expanduser() if os.environ.get(name) else default


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None
