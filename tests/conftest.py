from __future__ import annotations

import gc
import logging
import os
import runpy
import signal
import socket
import sys
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint, distributions
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import settings

import zygote
from octavo_registry import discovery

# Small tensors: a second thread costs more than it gives, the more so on a busy machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A shell's background job ignores it, and so would every process that a test starts to interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Each test draws from a seed of its own, and no example is kept between runs. Some draws are of
# constants of the modules that happen to be loaded, so that examples still differ with the tests
# that the process ran before: one that fails is met by chance, and is a fault all the same.
settings.register_profile("seeded", derandomize=True, deadline=None)
settings.load_profile("seeded")
# Engines of tests are nobody's use of Octavo.
os.environ["DO_NOT_TRACK"] = "1"
# Plugins that the developer has installed are no part of what is tested, here or in a process
# that a test starts.
ISOLATION = Path(__file__).parent / "isolation"
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(ISOLATION), *filter(None, [os.environ.get("PYTHONPATH")])]
)
discovery.entry_points = runpy.run_path(str(ISOLATION / "sitecustomize.py"))["entry_points"]
zygote.install()


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Send what each test tells pytest-rerunfailures at once.

    Two small messages in a row otherwise wait 40 ms for the acknowledgement of the first: with
    12,658 tests four of the suite's 18 minutes.
    """
    link = getattr(getattr(config, "failures_db", None), "sock", None)
    if link is not None:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for garbage neither while tests are collected nor ever in what that has made.

    It stays to the end, a million objects, through which each full collection would go.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked ``gpu`` run where there is one."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Where a test that has to hold on both runs."""
    chosen: str = request.param
    return chosen


@pytest.fixture
def quiet() -> Iterator[None]:
    """Nothing below errors is logged: walks make thousands of faults on purpose."""
    logging.getLogger("octavo").setLevel(logging.ERROR)
    yield
    logging.getLogger("octavo").setLevel(logging.NOTSET)


@dataclass(frozen=True)
class PluginSite:
    """The only folder in which installed plugins are looked for during a test."""

    root: Path

    def write(self, module: str, source: str = "") -> str:
        """Make an importable plugin module that nothing declares."""
        text = f'from octavo_registry import hookimpl\nOCTAVO_API = "1"\n{dedent(source)}'
        (self.root / f"{module}.py").write_text(text)
        return module

    def install(
        self, module: str, source: str = "", *, name: str | None = None, version: str = "1.0"
    ) -> str:
        """Make a plugin module and declare it as a distribution's entry point would."""
        self.write(module, source)
        self.declare(name or module, module, distribution=f"dist-{module}", version=version)
        return name or module

    def declare(self, name: str, value: str, *, distribution: str, version: str = "1.0") -> None:
        info = self.root / f"{distribution.replace('-', '_')}-1.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Name: {distribution}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(f"[octavo]\n{name} = {value}\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PluginSite]:
    root = tmp_path / "site"
    root.mkdir()
    monkeypatch.syspath_prepend(str(root))

    def entry_points_here(*, group: str) -> list[EntryPoint]:
        found = [p for d in distributions(path=[str(root)]) for p in d.entry_points]
        return [point for point in found if point.group == group]

    monkeypatch.setattr(discovery, "entry_points", entry_points_here)
    yield PluginSite(root)
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(root)):
            del sys.modules[name]
