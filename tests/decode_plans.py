"""Plans of steps that decode, made by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec.structs import replace

from octavo.steps.plan import Sections, StepPlan, pack_sections
from octavo_kernels.row_features import Work


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def decode_plan(
    step_id: int = 1, *, num_rows: int = 256, num_words: int = 0, **more: Any
) -> StepPlan:
    """Rows of one token each, with a diff of so many words."""
    rows, none = np.arange(num_rows, dtype=np.int32), ints()
    words = np.arange(num_words, dtype=np.int32)
    sections = Sections(*[none] * len(Sections._fields))._replace(
        diff_indices=words,
        diff_values=words,
        slots=rows,
        query_starts=np.arange(num_rows + 1),
        sample_slots=rows,
        logit_tokens=rows,
    )
    buffer, sizes = pack_sections(sections)
    given: dict[str, Any] = {
        "step_id": step_id,
        "buffer": buffer,
        "sizes": sizes,
        "num_tokens": num_rows,
        "slots": rows.astype(np.intp),
        "query_lens": np.ones(num_rows, np.int32),
        "context_lens": np.arange(num_rows, dtype=np.int32) + 100,
        "features": np.arange(num_rows, dtype=np.int32),
        "work": Work(3),
        "num_logprobs": -1,
        "num_prompt_logprobs": -1,
        "of_allowed": np.zeros(num_rows, bool),
        **more,
    }
    return StepPlan(**given)


def again(plan: StepPlan, step_id: int, *, num_words: int = 0) -> StepPlan:
    """The step that repeats it, each row as many tokens on as steps have passed."""
    first = plan.repeats or plan.step_id
    made = decode_plan(step_id, num_rows=plan.num_rows, num_words=num_words, repeats=first)
    return replace(made, context_lens=plan.context_lens + np.int32(step_id - plan.step_id))
