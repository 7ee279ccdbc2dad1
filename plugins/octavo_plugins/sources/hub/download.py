"""Files of a snapshot into the cache: several at a time, each checked before it counts."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Final

from octavo.errors import ModelError
from octavo_plugins.sources.hub.cache import ModelCache
from octavo_plugins.sources.hub.client import HubClient, Stopped
from octavo_plugins.sources.hub.files import RemoteFile, total_bytes

MAX_PARALLEL: Final = 8
GIB: Final = 1024**3


def download(
    files: Sequence[RemoteFile], cache: ModelCache, commit: str, client: HubClient, *, title: str
) -> None:
    """Fetch what the snapshot lacks; on an error the parts that came stay, to go on from."""
    missing = [file for file in files if not cache.holds(commit, file)]
    absent = [file for file in missing if not cache.blob(file).is_file()]
    _check_space(absent, cache)
    with _Progress(absent, cache, title) as progress:
        _each(absent, lambda file: _fetch(file, cache, client, progress.advance), client)
    for file in missing:
        cache.link(commit, file)


def _each(
    files: Sequence[RemoteFile], fetch: Callable[[RemoteFile], None], client: HubClient
) -> None:
    """Run side by side; the first failure, or an interrupt, ends the others."""
    with ThreadPoolExecutor(MAX_PARALLEL, "octavo-download") as pool:
        futures = [pool.submit(fetch, file) for file in files]
        try:
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            errors = [error for future in done if (error := future.exception())]
            for error in sorted(errors, key=lambda error: isinstance(error, Stopped)):
                raise error
        except BaseException:
            client.stop.set()
            pool.shutdown(cancel_futures=True)
            raise


def _fetch(
    file: RemoteFile, cache: ModelCache, client: HubClient, on_bytes: Callable[[int], None]
) -> None:
    blob = cache.blob(file)
    with cache.lock(file, client.stop):
        if blob.is_file():
            return  # another process was first
        partial = blob.with_name(f"{blob.name}.incomplete")
        client.download(file.url, partial, file.num_bytes, on_bytes)
        if partial.stat().st_size != file.num_bytes or not file.matches(partial):
            partial.unlink()
            raise ModelError(
                f"{file.url}: what came does not have the hash that the hub names "
                f"({file.digest[:12]}...), and was deleted; run this again to fetch it anew"
            )
        partial.replace(blob)


def _check_space(files: Sequence[RemoteFile], cache: ModelCache) -> None:
    folder = next(path for path in (cache.folder, *cache.folder.parents) if path.exists())
    free, needed = shutil.disk_usage(folder).free, total_bytes(files)
    if needed > free:
        raise ModelError(
            f"{cache.folder} needs {needed / GIB:.1f} GiB more, but its disk has "
            f"{free / GIB:.1f} GiB; make room, or put the cache elsewhere"
        )


class _Progress:
    """One bar for all files, on a terminal only."""

    def __init__(self, files: Sequence[RemoteFile], cache: ModelCache, title: str) -> None:
        from tqdm import tqdm

        self._lock = threading.Lock()
        self._bar = tqdm(
            desc=title,
            total=total_bytes(files),
            initial=sum(_bytes_there(file, cache) for file in files),
            unit="B",
            unit_scale=True,
            disable=None if files else True,
        )

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()

    def advance(self, num_bytes: int) -> None:
        """Count bytes that came; from any thread."""
        with self._lock:
            self._bar.update(num_bytes)


def _bytes_there(file: RemoteFile, cache: ModelCache) -> int:
    blob = cache.blob(file)
    partial = blob.with_name(f"{blob.name}.incomplete")
    return partial.stat().st_size if partial.exists() else 0
