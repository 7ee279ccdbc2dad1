"""The requests of a caller that steps the engine itself: in, step by step, outputs back."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from octavo.detokenizing.processor import OutputProcessor
from octavo.engine.client import EngineClient
from octavo.errors import RequestFailedError
from octavo.inputs import PreparedRequest
from octavo.messages import StepOutputs
from octavo.outputs import RequestOutput


class OpenRequests:
    """Requests of one engine that are not finished; for one thread at a time."""

    def __init__(self, client: EngineClient, outputs: OutputProcessor) -> None:
        self._client = client
        self._outputs = outputs

    def __len__(self) -> int:
        return self._outputs.num_open

    def add(self, requests: Sequence[PreparedRequest]) -> None:
        """Queue requests; a request's id is its own while it is open."""
        for each in requests:
            self._outputs.add(each.request, each.params, each.prompt, time.monotonic())
        if requests:
            self._client.add([each.request for each in requests])

    def take(self, step: StepOutputs) -> list[RequestOutput]:
        """Return the outputs that a step gave, of each request as its ``output_kind`` says."""
        processed = self._outputs.process(step)
        if processed.aborts:
            self._client.abort(processed.aborts)
        return processed.outputs

    def abort(self, request_ids: Iterable[str]) -> None:
        """End requests, of which nothing comes any more; ids that are not open are left out."""
        sequences = [s for each in request_ids for s in self._outputs.abort(each).aborts]
        if sequences and self._client.alive:
            self._client.abort(sequences)


def read_answers(request: PreparedRequest, output: RequestOutput) -> None:
    """Read a chat's answers; a parser that fails on them is that request's error alone."""
    if request.reader is not None:
        try:
            request.reader.take(output)
        except RequestFailedError as error:
            output.error, output.error_type = str(error), type(error).__name__
            for each in output.outputs:
                each.finish_reason = "error"
