"""Octavo's processes without their imports: copies of one that has imported all.

Once this is installed, ``subprocess.Popen`` begins ``python -P -m octavo...`` as a copy of a
*zygote*: a process that has imported Octavo, its plugins and what these need, has computed nothing
and has one thread. So an engine costs some 20 ms of a core before its work, not two seconds. A copy
is a child of the process that asked for it, with arguments, environment, folder, streams and exit
status of its own, and a zygote for what it starts in turn.

All else starts afresh: a test of imports, of start-up or of the environment runs
``[sys.executable, "-c", ...]`` or leaves ``-P`` out, and so does all that such a process starts.
"""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import json
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, Self

PROGRAM: Final = Path(__file__).with_name("zygote_process.py")
COPIED: Final = [sys.executable, "-P", "-m"]
SMALL: Final = ("octavo.guided.", "octavo.inputs.")
"""Processes that import little, and are copied themselves for each piece of their work."""
READ_AT_START: Final = (
    *("CUDA", "HF_", "LC_", "LD_", "MKL_", "NUMBA_", "OMP_", "OPENBLAS_", "PYTHON"),
    *("PYTORCH_", "TORCH_", "TRANSFORMERS_", "TZ"),
)
"""How variables begin that Python and libraries read before a program runs, and do not set."""
TITLE_BYTES: Final = 4096
"""For a copy's command line, by which processes are found."""
LENGTH: Final = struct.Struct("=I")
SUBREAPER: Final = 36  # PR_SET_CHILD_SUBREAPER of <linux/prctl.h>
FreshPopen: Final = subprocess.Popen
WAY: Final = inspect.signature(FreshPopen._execute_child)  # type: ignore[attr-defined]
PIPES: Final = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")


def install() -> None:
    """Have copies made from here on, for as long as variables that are read at start stay."""
    Popen.environment = dict(os.environ)
    subprocess.Popen = Popen  # type: ignore[misc]


class Start(NamedTuple):
    """What a copy begins with."""

    argv: list[str]
    """Behind ``python -P -m``."""
    environment: dict[str, str]
    folder: str
    new_session: bool
    process_group: int
    """Below zero: its parent's."""
    numbers: list[int]
    """Of its open files."""


class Zygote:
    """One, as the only process that may ask it sees it."""

    def __init__(self, link: socket.socket, environment: Mapping[str, str]) -> None:
        self._link = link
        self._asker = os.getpid()
        self._read_at_start = read_at_start(environment)
        self._is_asked = threading.Lock()

    @classmethod
    def start(cls, environment: Mapping[str, str]) -> Self:
        """Return one that begins to import."""
        ours, theirs = socket.socketpair()
        with theirs:
            number = theirs.fileno()
            command = [sys.executable, str(PROGRAM), str(number), " " * TITLE_BYTES]
            process = FreshPopen(command, pass_fds=[number], env=environment)
        made = cls(ours, environment)
        made._process = process  # type: ignore[attr-defined]
        return made

    def would_do(self, environment: Mapping[str, str]) -> bool:
        """Whether a fresh process with this environment would import the same."""
        return self._asker == os.getpid() and self._read_at_start == read_at_start(environment)

    def copy(self, start: Start, files: Sequence[int]) -> int:
        """Return the id of a new child of this process; ``OSError`` when the zygote has died."""
        data = json.dumps(start).encode()
        with self._is_asked, adopting():
            socket.send_fds(self._link, [LENGTH.pack(len(data))], files)
            self._link.sendall(data)
            answer = self._link.recv(LENGTH.size)
        if not answer:
            raise ConnectionError("the zygote has died")
        return int(LENGTH.unpack(answer)[0])


class Popen(FreshPopen):  # type: ignore[type-arg]
    """A process, copied where that makes no difference."""

    environment: ClassVar[Mapping[str, str] | None] = None
    """A zygote's that is started when one is needed and there is none."""
    zygote: ClassVar[Zygote | None] = None

    def _execute_child(self, *given: Any) -> None:
        way = WAY.bind(self, *given).arguments
        start, files = as_copy(way)
        if start is None or (pid := self._copy(start, files)) is None:
            super()._execute_child(*given)  # type: ignore[misc]
            return
        self.pid = pid
        self._child_created = True
        self._close_pipe_fds(*(way[name] for name in PIPES))  # type: ignore[attr-defined]

    @classmethod
    def _copy(cls, start: Start, files: Sequence[int]) -> int | None:
        if cls.zygote is None and cls.environment is not None:
            cls.zygote = Zygote.start(cls.environment)
        if cls.zygote is None or not cls.zygote.would_do(start.environment):
            return None
        try:
            return cls.zygote.copy(start, files)
        except OSError:  # killed with its process group
            cls.zygote = None
            return None


def as_copy(way: Mapping[str, Any]) -> tuple[Start | None, list[int]]:
    """What a copy would begin with, and its open files; None for what has to start afresh."""
    is_plain = isinstance(way["args"], list | tuple) and not (
        way["executable"] or way["shell"] or way["preexec_fn"]
    )
    argv = [os.fsdecode(part) for part in way["args"]] if is_plain else []
    if argv[:3] != COPIED or not argv[3].startswith("octavo") or argv[3].startswith(SMALL):
        return None, []
    streams = {0: way["p2cread"], 1: way["c2pwrite"], 2: way["errwrite"]}
    files = {number: number if file < 0 else file for number, file in streams.items()}
    files |= {number: number for number in way["pass_fds"]}
    start = Start(
        argv=argv[3:],
        environment=dict(os.environ if way["env"] is None else way["env"]),
        folder=os.path.abspath(way["cwd"] or os.curdir),
        new_session=bool(way["start_new_session"]),
        process_group=way["process_group"],
        numbers=list(files),
    )
    return start, list(files.values())


def read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    """What of it is read before a program runs."""
    names = [name for name in environment if name.startswith(READ_AT_START)]
    return {name: environment[name] for name in names if name != "PYTHONPATH"}


@contextlib.contextmanager
def adopting() -> Iterator[None]:
    """Meanwhile orphans among this process's descendants become its children."""
    libc = ctypes.CDLL(None)
    libc.prctl(SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(SUBREAPER, 0, 0, 0, 0)
