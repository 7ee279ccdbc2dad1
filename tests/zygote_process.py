"""The process of which ``zygote`` makes copies. It ends with the one that may ask it."""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Final, NoReturn

from zygote import LENGTH, Popen, Start, Zygote

PACKAGES: Final = ("octavo_registry", "octavo_kernels", "octavo", "octavo_plugins")
UNUSED: Final = ("octavo_plugins.models.transformers.",)
"""By almost all: with references of models they take as long to import as all others."""
IMPORTED_LATE: Final = (
    *("jinja2.debug", "torch.utils._device", "transformers.models.auto.tokenization_auto"),
    *("transformers.tokenization_python", "uvicorn.lifespan.off"),
)
"""By functions that every server calls."""
FOR_THE_ASKER: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that a process group gets as a whole."""
MOST_FILES: Final = 64


def main() -> None:
    link = int(sys.argv[1])
    del sys.path[0]  # the folder of this file
    given = given_paths(os.environ)
    installed = [path for path in sys.path if path not in given]
    import_all()
    assert len(os.listdir("/proc/self/task")) == 1, "a copy would have one thread of several"
    gc.freeze()
    start, link = until_a_copy(link)
    Popen.zygote = Zygote(socket.socket(fileno=link), os.environ)
    subprocess.Popen = Popen  # type: ignore[misc]
    end(status_of(start, installed))


def import_all() -> None:
    """Octavo, its plugins, and what all servers import when they need it."""
    for package in map(importlib.import_module, PACKAGES):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            name = module.name
            if not (name.endswith((".__main__", ".reference")) or name.startswith(UNUSED)):
                importlib.import_module(name)
    for name in IMPORTED_LATE:
        importlib.import_module(name)


def until_a_copy(link: int) -> tuple[Start, int]:
    """Make copies for the link's other end; return in a copy, with the link to its own zygote.

    Files are numbers here: an object would close, when it goes, what has its number by then.
    """
    become_zygote(link)
    while True:
        start, files = received(link)
        pid = fork_for_the_asker()
        if pid:
            for file in files:
                os.close(file)
            os.write(link, LENGTH.pack(pid))
            continue
        if start.new_session:
            os.setsid()
        if start.process_group >= 0:
            os.setpgid(0, start.process_group)
        ours, link = (end.detach() for end in socket.socketpair())
        if os.fork():
            return start, with_files(start.numbers, files, ours)
        become_zygote(link)


def become_zygote(link: int) -> None:
    """Hold nothing whose end others may wait for."""
    for number in FOR_THE_ASKER:
        signal.signal(number, signal.SIG_IGN)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    close_all_but(link)
    set_command_line([sys.executable, "zygote"])


def received(link: int) -> tuple[Start, list[int]]:
    """What is asked for next; if nobody can ask any more, the process ends."""
    stream = socket.socket(fileno=link)
    with suppress(ConnectionError):
        head, files, _, _ = socket.recv_fds(stream, LENGTH.size, MOST_FILES)
        if head:
            (length,) = LENGTH.unpack(head)
            data = stream.recv(length, socket.MSG_WAITALL)
            stream.detach()
            return Start(*json.loads(data)), files
    os._exit(0)


def fork_for_the_asker() -> int:
    """Return the copy's id; in the copy 0, once it is a child of the process that waits for it.

    It has been forked twice: an orphan is adopted.
    """
    told, telling = os.pipe()
    gate, closed_gate = os.pipe()
    middle = os.fork()
    if not middle:
        if os.fork():
            os._exit(0)
        os.write(telling, LENGTH.pack(os.getpid()))
        os.close(closed_gate)
        os.read(gate, 1)
        return 0
    os.waitpid(middle, 0)
    (pid,) = LENGTH.unpack(os.read(told, LENGTH.size))
    for file in (told, telling, gate, closed_gate):
        os.close(file)
    return int(pid)


def with_files(numbers: list[int], files: list[int], link: int) -> int:
    """Give files their numbers, and the link one that none of them has; close all others."""
    above = max(numbers) + 1
    link = fcntl.fcntl(link, fcntl.F_DUPFD_CLOEXEC, above)
    high = [fcntl.fcntl(file, fcntl.F_DUPFD, above) for file in files]
    for file, number in zip(high, numbers, strict=True):
        os.dup2(file, number)
    close_all_but(*numbers, link)
    return link


def close_all_but(*kept: int) -> None:
    above = sorted(number for number in kept if number > 2)
    for low, high in pairwise([2, *above, os.sysconf("SC_OPEN_MAX")]):
        os.closerange(low + 1, high)


def status_of(start: Start, installed: list[str]) -> int:
    """Run what the copy is for, and tell what it raises, as the interpreter does."""
    try:
        run(start, installed)
    except SystemExit as asked:
        if asked.code is None or isinstance(asked.code, int):
            return (asked.code or 0) & 0xFF
        print(asked.code, file=sys.stderr)
        return 1
    except Exception:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def run(start: Start, installed: list[str]) -> None:
    """Become what a fresh process would be just before its program, and run that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    os.chdir(start.folder)
    os.environ.clear()
    os.environ.update(start.environment)
    sys.path[:] = dict.fromkeys([*given_paths(start.environment), *installed])  # each once
    open_streams()
    sys.argv[:] = start.argv
    set_command_line([sys.executable, "-P", "-m", *start.argv])
    sys.modules.pop(start.argv[0], None)  # it runs as __main__, as if it were met first
    runpy.run_module(start.argv[0], run_name="__main__", alter_sys=True)


def given_paths(environment: Mapping[str, str]) -> list[str]:
    """Where modules are looked for before those that are installed."""
    given = environment.get("PYTHONPATH")
    return given.split(os.pathsep) if given else []


def open_streams() -> None:
    """Those of the zygote know of other files."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        was = getattr(sys, name)
        made = io.TextIOWrapper(
            os.fdopen(number, "wb" if number else "rb", closefd=False),
            encoding=was.encoding,
            errors=was.errors,
            line_buffering=number == 2 or os.isatty(number),
            write_through=was.write_through,
        )
        setattr(sys, name, made)
        setattr(sys, f"__{name}__", made)


def end(status: int) -> NoReturn:
    """End as the interpreter does, without taking apart each module: a third of a second."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # nobody reads it, or it was closed
            stream.flush()
    os._exit(status)


def set_command_line(argv: list[str]) -> None:
    """What others read of this process: it had room for a long one."""
    (first, end) = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:47])
    data = "\0".join(argv).encode()[: end - first - 1]
    ctypes.memset(first, 0, end - first)
    ctypes.memmove(first, data, len(data))


if __name__ == "__main__":
    main()
