"""The conformance of a modality's decoder: what it reads, what it refuses, and what that costs."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from octavo.config.media import MediaConfig
from octavo.errors import BadRequestError
from octavo.multimodal.errors import MediaTooLargeError
from octavo.multimodal.reader import MediaReader
from octavo.testing.report import Check
from octavo_registry import MediaLimits, ModalityDecoder, PluginHost
from octavo_registry.faults import FAILURES, one_line
from octavo_registry.lazy import load_target
from octavo_registry.modalities import MediaError, MediaLimitError

NUM_CHANGES: Final = 40
"""Damaged versions of each sample."""
MAX_SECONDS: Final = 5.0
"""For what is refused; a busy machine has its share."""
MAX_GROWTH: Final = 256 << 20
"""Bytes of memory in which a bomb is refused."""
LONG_AGO: Final = -1.0
PROCESS: Final = Path("/proc/self")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModalitySamples:
    """What the kit tries a decoder with; all small, and each of other content than the others."""

    encoded: Mapping[str, bytes]
    """Files that are read, by a name for the report."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """Objects that users of ``LLM`` may give instead."""
    broken: Mapping[str, bytes]
    """Files that are refused: cut, of another kind, without content."""
    bombs: Mapping[str, bytes] = field(default_factory=dict)
    """Small files that would become large: above the limits that a server has by default."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options that a model gives its decoder."""


class WrongDecoder(Exception):
    """What a check has found."""


def check_modality(host: PluginHost, name: str) -> list[Check]:
    """Try the decoder of one modality with the samples that its registration names."""
    title = f"modality {name!r}"
    target = host.modalities.info(name).metadata["samples"]
    if not target:
        detail = "no samples: modalities.add(..., samples='pkg.module:function that returns them')"
        return [Check(name=f"{title}: it can be tried", passed=False, detail=detail)]
    samples: ModalitySamples = load_target(target)()
    return list(_Checks(title, host, name, samples).run())


class _Checks:
    def __init__(self, title: str, host: PluginHost, name: str, samples: ModalitySamples) -> None:
        self._title = title
        self._host = host
        self._name = name
        self._samples = samples
        self._decoder: ModalityDecoder = host.modalities.make(name)

    def run(self) -> Iterator[Check]:
        for name, look in (
            ("the same bytes are the same item, others another", self._same_bytes),
            ("given objects are items, each another", self._same_given),
            ("a list of items is no item", self._lists),
            ("broken files are refused", self._broken),
            ("damaged files are read or refused, and nothing else happens", self._damaged),
            ("objects of another kind are refused", self._nonsense),
            ("memory is asked for before it is taken", self._reserves),
            ("decoding ends when its time is over", self._in_time),
            ("bombs are refused, in no memory", self._bombs),
        ):
            yield self._check(f"{self._title}: {name}", look)

    def _check(self, name: str, look: Callable[[], str]) -> Check:
        try:
            return Check(name=name, passed=True, detail=look())
        except FAILURES as error:
            is_found = isinstance(error, WrongDecoder)
            detail = str(error) if is_found else one_line(error)
            return Check(name=name, passed=False, detail=detail)

    def _decode(self, data: bytes, limits: MediaLimits | None = None) -> Any:
        return self._decoder.decode(data, limits or _limits(), self._samples.options)

    def _convert(self, given: Any) -> Any:
        return self._decoder.convert(given, _limits(), self._samples.options)

    def _digest(self, value: Any) -> str:
        digest = hashlib.sha256()
        for part in self._decoder.content(value):
            digest.update(part)
        return digest.hexdigest()

    def _same_bytes(self) -> str:
        """Also in several threads at a time, as a server does it."""
        if not self._samples.encoded:
            raise WrongDecoder("there is no sample")
        found = {name: self._digest(self._decode(d)) for name, d in self._samples.encoded.items()}
        _must_differ(found)
        names = list(found) * 8
        with ThreadPoolExecutor(4) as threads:
            again = threads.map(
                lambda n: self._digest(self._decode(self._samples.encoded[n])), names
            )
            for name, digest in zip(names, again, strict=True):
                if digest != found[name]:
                    raise WrongDecoder(f"{name} is another item when it is read again")
        return f"read: {', '.join(found)}"

    def _same_given(self) -> str:
        found = {
            name: self._digest(self._convert(given)) for name, given in self._samples.given.items()
        }
        _must_differ(found)
        for name, given in self._samples.given.items():
            if self._digest(self._convert(given)) != found[name]:
                raise WrongDecoder(f"{name} is another item when it is converted again")
        return f"converted: {', '.join(found)}" if found else "not claimed: no object is given"

    def _lists(self) -> str:
        for name, given in self._samples.given.items():
            if isinstance(given, (list, tuple)) and not self._decoder.is_item(given):
                raise WrongDecoder(f"{name}, a {type(given).__name__}, is not told to be one item")
        for name, data in self._samples.encoded.items():
            if self._decoder.is_item([data, data]):
                raise WrongDecoder(f"two files, {name} twice, are told to be one item")
        return ""

    def _broken(self) -> str:
        """On the way that a server's requests take, which also refuses what has no bytes."""
        if not self._samples.broken:
            raise WrongDecoder("there is no broken sample")
        with self._reader() as reader:
            for name, data in {"0 bytes": b"", **self._samples.broken}.items():
                self._refused(reader, name, data)
        return f"refused: 0 bytes, {', '.join(self._samples.broken)}"

    def _damaged(self) -> str:
        rng = np.random.default_rng(0)
        num_refused = 0
        for name, data in self._samples.encoded.items():
            for number in range(NUM_CHANGES):
                change = "cut" if number % 2 else "with bytes changed"
                with _in_seconds(f"{name}, {change}"):
                    try:
                        self._decode(_cut(data, rng) if number % 2 else _changed(data, rng))
                    except MediaError:
                        num_refused += 1
                    except FAILURES as error:
                        raise WrongDecoder(f"{name}, {change}: {one_line(error)}") from error
        return f"{num_refused} of {NUM_CHANGES * len(self._samples.encoded)} refused"

    def _nonsense(self) -> str:
        for given in (object(), len):
            try:
                self._convert(given)
            except MediaError:
                continue
            except FAILURES as error:
                raise WrongDecoder(f"{given!r}: {one_line(error)}") from error
            raise WrongDecoder(f"{given!r} is taken as an item")
        return ""

    def _reserves(self) -> str:
        def refuse(num_bytes: int) -> None:
            raise MediaLimitError("there is no room")

        return self._limited(_limits(reserve=refuse), "limits.reserve is not asked, or not heeded")

    def _in_time(self) -> str:
        return self._limited(_limits(deadline=LONG_AGO), "limits.check_time is never asked")

    def _limited(self, limits: MediaLimits, problem: str) -> str:
        for name, data in self._samples.encoded.items():
            try:
                self._decode(data, limits)
            except MediaLimitError:
                continue
            raise WrongDecoder(f"{name}: {problem}")
        return ""

    def _bombs(self) -> str:
        with self._reader() as reader:
            for name, data in self._samples.bombs.items():
                with _PeakMemory() as memory:
                    self._refused(reader, name, data)
                if memory.grown > MAX_GROWTH:
                    raise WrongDecoder(f"{name} takes {memory.grown >> 20} MiB until it is refused")
        names = ", ".join(self._samples.bombs)
        return f"refused: {names}" if names else "not claimed: the samples have no bombs"

    def _refused(self, reader: MediaReader, name: str, data: bytes) -> None:
        options = {self._name: self._samples.options}
        with _in_seconds(name):
            try:
                reader.read_blocking(reader.split({self._name: [data]}), options)
            except MediaTooLargeError as error:
                if "takes too long" in str(error):
                    raise WrongDecoder(f"{name}: {error}") from error
                return
            except BadRequestError:
                return
            except FAILURES as error:
                raise WrongDecoder(f"{name}: {one_line(error)}") from error
        raise WrongDecoder(f"{name} is read")

    @contextmanager
    def _reader(self) -> Iterator[MediaReader]:
        reader = MediaReader(self._host, MediaConfig(media_decode_timeout=MAX_SECONDS))
        try:
            yield reader
        finally:
            reader.close()


class _PeakMemory:
    """Bytes by which this process grows at most within; Linux alone can tell, elsewhere none."""

    def __enter__(self) -> _PeakMemory:
        self.grown = 0
        if PROCESS.is_dir():
            (PROCESS / "clear_refs").write_text("5")  # the peak begins again at what there is now
            self._before = self._peak()
        return self

    def __exit__(self, *error: object) -> None:
        if PROCESS.is_dir():
            self.grown = self._peak() - self._before

    def _peak(self) -> int:
        _, _, found = (PROCESS / "status").read_text().partition("VmHWM:")
        return 1024 * int(found.split()[0])


def _limits(**given: Any) -> MediaLimits:
    """A server's by default."""
    config, roomy = (
        MediaConfig(),
        {"deadline": time.monotonic() + 60, "reserve": lambda count: None},
    )
    return config.limits("", **{**roomy, **given})


def _must_differ(digests: Mapping[str, str]) -> None:
    by_digest: dict[str, str] = {}
    for name, digest in digests.items():
        other = by_digest.setdefault(digest, name)
        if other != name:
            raise WrongDecoder(f"{other} and {name} are one item, by the decoder's content")


@contextmanager
def _in_seconds(name: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    seconds = time.monotonic() - began
    if seconds > MAX_SECONDS:
        raise WrongDecoder(f"{name} takes {seconds:.1f} s")


def _cut(data: bytes, rng: np.random.Generator) -> bytes:
    return data[: int(rng.integers(1, max(2, len(data))))]


def _changed(data: bytes, rng: np.random.Generator) -> bytes:
    changed = bytearray(data)
    for place in rng.integers(0, len(data), 4):
        changed[place] = int(rng.integers(256))
    return bytes(changed)
