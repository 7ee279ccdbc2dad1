"""Where log records go; only programs of ours ask for this, never the library."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Final

from octavo.environment import LOGGING_CONFIG, LOGGING_LEVEL, misspelled, vllm_variables
from octavo.errors import ConfigError

log = logging.getLogger(__name__)

LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
HTTP_LOGGERS: Final = ("octavo.access", "octavo.server", "uvicorn")
FORMAT: Final = "%(asctime)s %(levelname)s %(message)s"
ENGINE_FORMAT: Final = "%(asctime)s %(levelname)s engine: %(message)s"


def configure_logging(*, default: str | None = None, form: str = FORMAT) -> None:
    """Set this process's logging up as the environment asks.

    ``default`` is the level without OCTAVO_LOGGING_LEVEL; None: nothing is set up then, which
    leaves Python's own way of showing warnings.
    """
    level, file = logging_level(), LOGGING_CONFIG.path()
    if file is not None:
        _apply(file)
        if level is not None:
            logging.getLogger().setLevel(level)
    elif level is not None or default is not None:
        logging.basicConfig(level=level or default, format=form)
        # Torch does so itself at the end of its import, which Ctrl-C may come before: it would then
        # show statistics of its own at exit.
        logging.getLogger("torch").setLevel(logging.WARNING)
        # Numba would tell of every instruction that it compiles.
        logging.getLogger("numba").setLevel(logging.WARNING)


def warn_of_misspelled_variables() -> None:
    """Name variables that look like ours and are not read."""
    for line in misspelled():
        log.warning("the environment's %s", line)


def warn_of_vllm_variables() -> None:
    """Name variables that another server would read."""
    for line in vllm_variables():
        log.warning("the environment's %s", line)


def set_http_level(level: str | None) -> None:
    """Give the loggers of HTTP a level of their own; None leaves them at that of the process."""
    if level is not None:
        for name in HTTP_LOGGERS:
            logging.getLogger(name).setLevel(level.upper() if level != "trace" else "DEBUG")


def follow_level(level: int) -> None:
    """Take the level of the process that started this one, unless the environment has its own."""
    if LOGGING_CONFIG.path() is None and logging_level() is None:
        logging.getLogger().setLevel(level)


def logging_level() -> str | None:
    """Return OCTAVO_LOGGING_LEVEL's value, if there is one."""
    given = LOGGING_LEVEL.text()
    if given is None:
        return None
    if given.upper() not in LEVELS:
        raise ConfigError(f"{LOGGING_LEVEL.name}={given!r} must be one of {', '.join(LEVELS)}")
    return given.upper()


def _apply(file: Path) -> None:
    from logging.config import dictConfig  # imports a server's code, which few need

    try:
        config = json.loads(file.read_text())
        # Loggers exist before this runs; the standard library would silence them.
        dictConfig({"version": 1, "disable_existing_loggers": False, **config})
    except (OSError, ValueError, TypeError, AttributeError, ImportError, RecursionError) as error:
        cause = f": {error.__cause__}" if error.__cause__ else ""
        raise ConfigError(f"{LOGGING_CONFIG.name}={file}: {error}{cause}") from error
