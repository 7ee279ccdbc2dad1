"""Every call and return of Octavo's functions in a file, to find where a process hangs or dies.

A line is in the file before the function goes on: what the process does last can be read there
even when it is killed.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, FrameType
from typing import Final

from octavo.environment import TRACE_FUNCTION
from octavo.errors import ConfigError

PACKAGES: Final = ("octavo", "octavo_registry", "octavo_plugins", "octavo_kernels")
_EVENTS: Final = {"call": "call  ", "return": "return"}


class FunctionTrace:
    """A profile function for ``sys.setprofile``; one file, for all threads of one process."""

    def __init__(self, file: Path) -> None:
        folders = [folder for folder in map(_folder, PACKAGES) if folder]
        self._roots = {f"{f}{os.sep}": len(f) - len(os.path.basename(f)) for f in folders}
        """Where our code is, and how much of it a line leaves out."""
        self._places: dict[CodeType, str | None] = {}
        """What a line says of a function; None for those of others."""
        self._began = time.monotonic()
        self._pid = os.getpid()
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
            self._file = os.open(file, flags, 0o600)
        except OSError as error:
            raise ConfigError(f"{TRACE_FUNCTION.name}={TRACE_FUNCTION.text()}: {error}") from error
        self._write(f"# {time.strftime('%Y-%m-%d %H:%M:%S')} process {self._pid}\n")

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        """Write a line, if the function is one of ours."""
        kind = _EVENTS.get(event)
        if kind is None:
            return
        code = frame.f_code
        try:
            place = self._places[code]
        except KeyError:
            place = self._places[code] = self._place(code)
        if place is not None and os.getpid() == self._pid:  # a fork has the file, not the name
            seconds = time.monotonic() - self._began
            thread = threading.current_thread().name
            self._write(f"{seconds:.6f} [{thread}] {kind} {place}\n")

    def _place(self, code: CodeType) -> str | None:
        root = next((r for r in self._roots if code.co_filename.startswith(r)), None)
        if root is None or code.co_filename == __file__:
            return None
        file = code.co_filename[self._roots[root] :]
        return f"{file}:{code.co_firstlineno} {code.co_qualname}"

    def _write(self, line: str) -> None:
        os.write(self._file, line.encode(errors="backslashreplace"))


def trace_functions() -> None:
    """Begin, if OCTAVO_TRACE_FUNCTION asks for it and this thread is not traced yet.

    This thread and those that start from now on are traced, so it comes first in a process.
    """
    prefix = TRACE_FUNCTION.path()
    if prefix is None or isinstance(sys.getprofile(), FunctionTrace):
        return
    trace = FunctionTrace(prefix.with_name(f"{prefix.name}.{os.getpid()}.log"))
    threading.setprofile(trace)
    sys.setprofile(trace)


def _folder(package: str) -> str | None:
    spec = find_spec(package)
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return places[0] if places else None
