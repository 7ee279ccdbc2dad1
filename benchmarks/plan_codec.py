"""What it takes to tell a plan to another process: python -m benchmarks.plan_codec [--rows N]

Steps of 256 rows that decode: one that repeats the step before it, one that repeats it and brings
blocks for a sixteenth of the rows, and one that was planned anew. Encoded and decoded by the CPU
time of this thread, medians; without what carries the frames.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np
from msgspec.structs import replace

from octavo.steps.layout import StateLayout
from octavo.steps.plan import Sections, StepPlan, pack_sections
from octavo.steps.plan_codec import PlanDecoder, PlanEncoder
from octavo.steps.slot_fields import Ints
from octavo_kernels.row_features import Work
from octavo_registry.executor import ExecutorFacts

CONTEXT = 1024


def plan_of(num_rows: int, num_changed: int, step_id: int, repeats: int) -> StepPlan:
    """A step of one token a row, with a diff of so many words."""
    rows: Ints = np.arange(num_rows, dtype=np.int32)
    starts: Ints = np.arange(num_rows + 1, dtype=np.int32)
    none: Ints = np.zeros(0, np.int32)
    changed: Ints = np.arange(num_changed, dtype=np.int32)
    buffer, sizes = pack_sections(
        Sections(*[none] * len(Sections._fields))._replace(
            diff_indices=changed,
            diff_values=changed,
            slots=rows,
            query_starts=starts,
            sample_slots=rows,
            logit_tokens=rows,
        )
    )
    return StepPlan(
        step_id=step_id,
        buffer=buffer,
        sizes=sizes,
        num_tokens=num_rows,
        slots=rows.astype(np.intp),
        query_lens=np.ones(num_rows, np.int32),
        context_lens=np.full(num_rows, CONTEXT + step_id % 100, np.int32),
        features=np.zeros(num_rows, np.int32),
        work=Work(0),
        num_logprobs=-1,
        num_prompt_logprobs=-1,
        of_allowed=np.zeros(num_rows, bool),
        repeats=repeats,
    )


def microseconds(call: Callable[[], object]) -> float:
    start = time.thread_time_ns()
    call()
    return (time.thread_time_ns() - start) / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--steps", type=int, default=2000)
    arguments = parser.parse_args()
    num_rows = arguments.rows
    state = StateLayout(num_slots=num_rows, max_model_len=2 * CONTEXT, max_blocks=128, num_groups=1)
    facts = ExecutorFacts(
        layout=None, state=state, num_blocks=1, num_swap_blocks=0, max_model_len=2 * CONTEXT
    )
    encoder, decoder = PlanEncoder(), PlanDecoder(facts)
    decoder.decode(encoder.encode(plan_of(num_rows, 0, 1, 0)))
    cases = {
        "repeated": (0, 1),
        "repeated with blocks": (num_rows // 16, 1),
        "planned anew": (num_rows // 16, 0),
    }
    for name, (num_changed, repeats) in cases.items():
        plan = plan_of(num_rows, num_changed, 2, repeats)
        encoded, decoded = [], []
        for step in range(2, arguments.steps):
            numbered = replace(plan, step_id=step)
            encoded.append(microseconds(lambda: encoder.encode(numbered)))  # noqa: B023
            frames = encoder.encode(numbered)
            decoded.append(microseconds(lambda: decoder.decode(frames)))  # noqa: B023
        found = {
            "step": name,
            "rows": num_rows,
            "bytes": sum(map(len, frames)),
            "encode_us": round(statistics.median(encoded), 1),
            "decode_us": round(statistics.median(decoded), 1),
        }
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
