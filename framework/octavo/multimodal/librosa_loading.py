"""librosa in a process where a model hears, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from octavo.errors import ConfigError


@contextmanager
def loading_librosa() -> Iterator[None]:
    """Around the first use of a function, while a model is loaded.

    ``import librosa`` imports next to nothing; what a function needs comes when it is first used: a
    second and 200 MB, mostly numba's, and where numba has kept nothing yet, a quarter of a minute.
    """
    try:
        yield
    except RuntimeError as error:
        if "no locator" not in str(error):
            raise
        raise ConfigError(
            "librosa needs a folder to keep what numba compiles for it, and HOME is none that can "
            "be written; set NUMBA_CACHE_DIR to one"
        ) from error
