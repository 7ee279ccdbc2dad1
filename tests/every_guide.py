"""Backends for tests whose tokens are known: "near" fills masks in the engine, "far" in a child."""

from __future__ import annotations

import os
import random
import signal
import time
import weakref
from typing import ClassVar

import numpy as np

from octavo_registry import LazyRegistry, hookimpl

OCTAVO_API = "1"
NUM_TOKENS = 24


@hookimpl
def register_guided_backends(backends: LazyRegistry) -> None:
    for name, native in (("near", True), ("far", False)):
        target = "every_guide:Backend"
        backends.add(name, target, keywords=("grammar",), rank=-native, native=native)


def breaks():
    raise RuntimeError("no more")


def burns():
    while True:
        pass


FAULTS = {
    "breaks": breaks,
    "exits": lambda: os._exit(0),
    "dies": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "sleeps": lambda: time.sleep(600),
    "eats": lambda: bytearray(2**30),
    "burns": burns,
}


class Backend:
    def __init__(self, vocabulary) -> None:
        self.vocabulary = vocabulary

    def compile(self, constraint):
        if constraint.value == "bad":
            raise ValueError("this cannot be compiled")
        if constraint.value == "bad and dies":
            os._exit(1)
        if constraint.value == "bad and sleeps":
            time.sleep(600)
        if constraint.value == "long":
            time.sleep(0.3)
        return Every(self.vocabulary, constraint.value)


class Every:
    """Allows tokens whose sum with all before is a multiple of 7, and of some no more than one.

    "slow" takes longer than a step waits, now and then; "forced" tells what has no choice;
    "empty" allows nothing, "dead ends" nothing behind an odd sum, "panics" raises no Exception, and
    those of FAULTS do at their sixth mask what they say. "odd" forces what is no token, "census"
    one token: how many states there are in this process.
    """

    alive: ClassVar[weakref.WeakSet[Every]] = weakref.WeakSet()

    def __init__(self, vocabulary, manner: str, tokens=()) -> None:
        self.vocabulary, self.manner, self.tokens = vocabulary, manner, list(tokens)
        self.chance = random.Random(len(manner))
        self.alive.add(self)

    def start(self):
        if self.manner == "panics":
            raise SystemExit("not now")
        if self.manner == "bad start":
            raise RuntimeError("not now")
        return self.fork()

    def fork(self):
        return Every(self.vocabulary, self.manner, self.tokens)

    def choices(self) -> np.ndarray:
        tokens = np.arange(300, 2048)
        found = tokens[(tokens + sum(self.tokens)) % 7 == 0]
        no_choice = self.manner == "all forced" or len(self.tokens) % 12 in (1, 2, 3, 4, 5, 6, 10)
        return found[5:6] if no_choice else found

    def allowed(self, token: int) -> bool:
        return token in self.choices()

    def accept(self, token: int) -> bool:
        if self.allowed(token):
            self.tokens.append(token)
            return True
        return False

    def rollback(self, num_tokens: int) -> None:
        del self.tokens[len(self.tokens) - num_tokens :]

    def forced(self) -> list[int]:
        if self.manner == "census":
            return [len(self.alive)]
        if self.manner == "odd":
            return ["no token"]
        found = []
        if "forced" in self.manner:
            ahead = self.fork()
            while not ahead.is_finished() and len(choices := ahead.choices()) == 1:
                found.append(int(choices[0]))
                ahead.accept(found[-1])
        return found

    def fill_bitmask(self, row) -> None:
        if "slow" in self.manner and self.chance.random() < 0.4:
            time.sleep(0.05)
        if self.manner in FAULTS and len(self.tokens) == 5:
            FAULTS[self.manner]()
        bits = np.zeros(32 * len(row), np.uint8)
        is_dead_end = self.manner == "dead ends" and sum(self.tokens) % 2
        if self.manner != "empty" and not is_dead_end:
            bits[self.choices()] = 1
        row[:] = np.packbits(bits, bitorder="little").view(np.int32)

    def is_complete(self) -> bool:
        return len(self.tokens) == NUM_TOKENS

    def is_finished(self) -> bool:
        if self.manner == "bad end" and len(self.tokens) == 3:
            raise SystemExit("not now")
        return self.is_complete()
