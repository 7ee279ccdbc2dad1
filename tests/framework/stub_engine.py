"""An engine without a model, to be run as a process: it counts on from a prompt's last token.

The config's ``model`` says how it loads ("ok", "slow", "config-error", "crash", "exit"), or that
its idle work never ends ("restless"), or that a worker ends meanwhile ("fading"); a prompt that
ends in one of the tokens below makes trouble.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from typing import Any

from octavo.config import EngineConfig
from octavo.errors import ConfigError
from octavo.messages import (
    EngineReady,
    EngineRequest,
    PackedAdapter,
    PromptReport,
    SequenceEnd,
    StepOutputs,
)
from octavo_registry.manifest import Manifest

FAIL_ENGINE = 9001
FAIL_REQUEST = 9002
EXIT_PROCESS = 9003
IDLE_TIMES = 5
"""How often there is something to do while nothing is to do."""


class StubCore:
    def __init__(self, config: EngineConfig, manifest: Manifest) -> None:
        match config.model.model:
            case "slow":
                time.sleep(60)
            case "config-error":
                raise ConfigError("block_size=7 is\nwrong")
            case "crash":
                raise RuntimeError("no such device")
            case "exit":
                sys.stderr.write("the driver is too old\n")
                sys.stderr.flush()
                os._exit(7)
        self.config = config
        self.closed = 0
        self.ready = EngineReady(
            max_model_len=1000,
            vocab_size=10000,
            num_blocks=64,
            block_tokens=16,
            max_num_seqs=256,
            max_num_batched_tokens=512,
        )
        self.idle_times = 0
        self.has_looked = False
        self.adapters: dict[str, str] = {}
        """SHA-256 of the bytes by name."""
        self._live: dict[int, list[int]] = {}
        """By sequence: the next token, how many are left, the prompt's length; -1 once reported."""
        self._refused: list[SequenceEnd] = []

    @property
    def has_work(self) -> bool:
        return bool(self._live or self._refused)

    def add(self, requests: list[EngineRequest]) -> None:
        for request in requests:
            last = request.prompt_token_ids[-1]
            for sequence in request.sequences:
                if last == FAIL_REQUEST:
                    self._refused.append(SequenceEnd(sequence, "error", None, "a bad request"))
                else:
                    self._live[sequence] = [last, request.sampling.max_tokens, 1]

    def abort(self, sequences: list[int]) -> None:
        for sequence in sequences:
            self._live.pop(sequence, None)

    def add_adapter(self, adapter: PackedAdapter) -> None:
        self.adapters[adapter.head.content_hash] = hashlib.sha256(adapter.data).hexdigest()

    def remove_adapter(self, content_hash: str) -> None:
        del self.adapters[content_hash]

    def use_idle_time(self) -> bool:
        is_left = self.config.model.model == "restless" or self.idle_times < IDLE_TIMES
        self.idle_times += is_left
        if not is_left and self.config.model.model == "fading":
            if self.has_looked:
                raise RuntimeError("a worker has ended")
            self.has_looked = True
        return is_left

    def step(self) -> StepOutputs:
        time.sleep(0.001)
        ends, self._refused = self._refused, []
        prompts = []
        for sequence, state in self._live.items():
            if state[0] == FAIL_ENGINE:
                raise RuntimeError("illegal memory access")
            if state[0] == EXIT_PROCESS:
                os._exit(3)
            state[0] += 1
            state[1] -= 1
            if state[2]:
                prompts.append(PromptReport(sequence, 0))
                state[2] = 0
        sequences = list(self._live)
        tokens = [state[0] for state in self._live.values()]
        for sequence in sequences:
            if self._live[sequence][1] == 0:
                del self._live[sequence]
                ends.append(SequenceEnd(sequence, "length"))
        return StepOutputs(sequences=sequences, tokens=tokens, ends=ends, prompts=prompts)

    def call(self, method: str) -> Any:
        if method == "adapters":
            return self.adapters
        if method == "stats":
            return {"live": len(self._live), "pid": os.getpid(), "idle": self.idle_times}
        raise ConfigError(f"no engine method {method!r}")

    def close(self) -> None:
        self.closed += 1


if __name__ == "__main__":
    from octavo.engine.server import serve

    sys.exit(serve(sys.argv[sys.argv.index("--connect") + 1], StubCore))
