"""How Octavo is used on this machine: counts in a file that its user can read, or forbid.

Nothing leaves the machine unless OCTAVO_USAGE_STATS_URL is set. No prompt, path, name of a model
or of a host is among it.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import sys
import tempfile
import threading
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final
from urllib.request import Request, urlopen

from octavo.environment import DO_NOT_TRACK, NO_USAGE_STATS, USAGE_STATS_URL, config_home

log = logging.getLogger(__name__)

FILE: Final = "usage_stats.json"
REFUSAL: Final = "do_not_track"
SEND_SECONDS: Final = 5.0
MAX_BYTES: Final = 1 << 20


def folder() -> Path:
    """Return where the file is, and the refusal beside it."""
    return config_home() / "octavo"


def is_allowed() -> bool:
    """Whether nobody has forbidden it."""
    if NO_USAGE_STATS.is_not_off() or DO_NOT_TRACK.is_not_off():
        return False
    return not (folder() / REFUSAL).exists()


def record_start(*, architecture: str, dtype: str) -> threading.Thread | None:
    """Count an engine's start, in a thread of its own; None if that is not allowed.

    Whatever goes wrong there is nobody's trouble.
    """
    with suppress(OSError, RuntimeError):
        if is_allowed():
            facts = {"architecture": architecture, "dtype": dtype}
            thread = threading.Thread(
                target=_record, args=(facts,), name="usage stats", daemon=True
            )
            thread.start()
            return thread
    return None


def _record(facts: dict[str, str]) -> None:
    try:
        start = {**facts, **surroundings()}
        _count(folder(), start)
        url = USAGE_STATS_URL.text()
        if url is not None:
            _send(url, start)
    except Exception as error:
        log.debug("no usage statistics: %s", error)


def surroundings() -> dict[str, str]:
    """Return the versions and the device of this process."""
    return {
        "octavo": _version("octavo"),
        "torch": _version("torch"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "device": _device(),
    }


def _device() -> str:
    """Name what the engine runs on; torch is asked only where it is at work already."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        return str(torch.cuda.get_device_name())
    return "cpu"


def _count(place: Path, start: dict[str, str]) -> None:
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    known = _read(place / FILE)
    today = datetime.now(UTC).date().isoformat()
    starts = known.get("starts")
    known = {
        "about": "counts of Octavo's starts on this machine; OCTAVO_NO_USAGE_STATS=1, or a file "
        f"named {REFUSAL} beside this one, turns them off; it may be deleted at any time",
        "first_day": known.get("first_day", today),
        "last_day": today,
        "starts": (starts if isinstance(starts, int) else 0) + 1,
        "last_start": start,
    }
    # Another process may read or write at the same time: a file is there whole or not at all.
    with tempfile.NamedTemporaryFile("w", dir=place, suffix=".tmp", delete=False) as file:
        try:
            json.dump(known, file, indent=2)
            file.close()
            os.replace(file.name, place / FILE)
        except BaseException:
            with suppress(OSError):
                os.unlink(file.name)
            raise


def _read(file: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        if file.stat().st_size <= MAX_BYTES:
            known = json.loads(file.read_text())
            if isinstance(known, dict):
                return known
    return {}


def _send(url: str, start: dict[str, str]) -> None:
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"{USAGE_STATS_URL.name} must begin with http:// or https://")
    body = json.dumps(start).encode()
    request = Request(url, body, {"content-type": "application/json"})
    with urlopen(request, timeout=SEND_SECONDS):
        return


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
