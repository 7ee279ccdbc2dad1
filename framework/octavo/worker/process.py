"""A rank's loop: one message after the other, each with one answer."""

from __future__ import annotations

import gc
import logging
import mmap
from multiprocessing.connection import Connection
from typing import cast

import msgspec
import torch
from torch import nn

from octavo.errors import OctavoError, error_name
from octavo.execution.cpu_threads import useful_threads
from octavo.execution.reading import read_result
from octavo.execution.worker import Worker
from octavo.model_folder import open_model
from octavo.observability.logs import follow_level
from octavo.sampling.forward import Sampled
from octavo.steps.plan_codec import PlanDecoder
from octavo.worker.host_collectives import HostCollectives, RankAbortedError
from octavo.worker.wire import (
    ENCODER,
    AllocateRank,
    FromRank,
    MaskStep,
    RankFailed,
    RankMeasured,
    RankReady,
    ResetRank,
    RunPlan,
    StartRank,
    StepRan,
    ToRank,
)
from octavo_registry import PluginHost
from octavo_registry.faults import one_line
from octavo_registry.ranks import Ranks

log = logging.getLogger(__name__)


def serve(connection: Connection, memory: mmap.mmap) -> int:
    """Run a rank until the engine closes the connection; returns the exit status."""
    decoder = msgspec.msgpack.Decoder(ToRank)
    try:
        rank = _Rank(connection, cast(StartRank, decoder.decode(connection.recv_bytes())), memory)
        rank.start(cast(AllocateRank, decoder.decode(connection.recv_bytes())))
    except EOFError:
        return 0
    except Exception as error:
        if not isinstance(error, OctavoError):
            log.exception("the rank cannot start")
        _send(connection, RankFailed(error_name(error), one_line(error)))
        return 1
    while True:
        try:
            message = decoder.decode(connection.recv_bytes())
            rank.take(message)
        except (EOFError, ConnectionError):
            return 0


class _Rank:
    def __init__(self, connection: Connection, start: StartRank, memory: mmap.mmap) -> None:
        follow_level(start.log_level)
        config, host = start.config, PluginHost.from_manifest(start.manifest)
        self._connection = connection
        self._is_first = start.tp_rank == 0
        self._collectives = HostCollectives(memory, start.tp_rank, start.tp_size)
        most_threads = config.model.num_threads or torch.get_num_threads()
        torch.set_num_threads(max(most_threads // start.tp_size, 1))
        ranks = Ranks(
            tp_rank=start.tp_rank,
            tp_size=start.tp_size,
            collectives=self._collectives if start.tp_size > 1 else None,
        )
        self._worker = Worker(config, open_model(config.model, host), host, ranks)
        facts = self._worker.measure()
        self._failure: Exception | None = None
        """What the step that awaits masks has raised."""
        _send(connection, RankMeasured.of(facts))

    def start(self, allocate: AllocateRank) -> None:
        """Make cache and state."""
        agreed = allocate.agreed()
        self._worker.allocate(agreed)
        model = cast(nn.Module, self._worker.runner.model)
        torch.set_num_threads(useful_threads(model, most=torch.get_num_threads()))
        self._decoder = PlanDecoder(agreed)
        gc.freeze()
        _send(self._connection, RankReady())

    def take(self, message: ToRank) -> None:
        """Do what the engine says."""
        match message:
            case RunPlan(num_frames):
                frames = [bytearray(self._connection.recv_bytes()) for _ in range(num_frames)]
                plan = self._decoder.decode([*frames])
                try:
                    sampled = self._worker.runner.run(plan)
                except Exception as error:
                    self._failure = error
                    self._abort(error)
                    if not plan.awaits_masks:
                        self._fail(error)
                    return
                self._failure = None
                if sampled is not None:
                    self._answer(sampled)
            case MaskStep():
                try:
                    if self._failure is not None:
                        raise self._failure
                    self._answer(self._worker.runner.sample(message.masks()))
                except Exception as error:
                    self._abort(error)
                    self._fail(error)
            case ResetRank():
                self._collectives.reset()
                _send(self._connection, RankReady())

    def _answer(self, sampled: Sampled) -> None:
        answer = StepRan.of(read_result(sampled)) if self._is_first else StepRan()
        _send(self._connection, answer)

    def _abort(self, error: Exception) -> None:
        """Others may wait for this rank."""
        if not isinstance(error, RankAbortedError):
            self._collectives.abort()

    def _fail(self, error: Exception) -> None:
        is_aborted = isinstance(error, RankAbortedError)
        _send(self._connection, RankFailed(error_name(error), one_line(error), is_aborted))


def _send(connection: Connection, message: FromRank) -> None:
    connection.send_bytes(ENCODER.encode(message))
