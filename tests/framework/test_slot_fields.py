"""The table of slot fields: what the host writes by name is what the device reads by name."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.messages import TokenSampling
from octavo.steps.device_state import DeviceState
from octavo.steps.layout import StateDiff, StateLayout, state_bytes
from octavo.steps.slot_fields import FIELDS, STOP_IDS
from octavo_kernels.sample import SamplingState

MAX_LEN = 9
NUM_SLOTS = 3
INT32 = st.integers(-(2**31), 2**31 - 1)
SAMPLING = TokenSampling(seed=1, max_tokens=4)


def field_values() -> st.SearchStrategy[dict[str, Any]]:
    """All that ``put_slot`` is given by name; lists are as long as their field at most."""
    lists = {"seed": 2, "tokens": MAX_LEN, "automaton_stack": 64, "stop_ids": STOP_IDS}
    return st.fixed_dictionaries(
        {
            field.name: st.lists(INT32, max_size=lists[field.name]) if field.width != 1 else INT32
            for field in FIELDS
            if field.of is None
        }
    )


def samplings() -> st.SearchStrategy[TokenSampling]:
    number = st.floats(allow_nan=False, width=64, min_value=-1e30, max_value=1e30)
    return st.builds(
        TokenSampling,
        temperature=number,
        top_p=number,
        top_k=INT32,
        min_p=number,
        presence_penalty=number,
        frequency_penalty=number,
        repetition_penalty=number,
        seed=st.just(0),
        max_tokens=st.just(1),
    )


def written(slot: int, sampling: TokenSampling, values: dict[str, Any]) -> DeviceState:
    layout = StateLayout(num_slots=NUM_SLOTS, max_model_len=MAX_LEN, max_blocks=1, num_groups=2)
    state, diff = DeviceState(layout, torch.device("cpu")), StateDiff(layout)
    diff.put_slot(slot, sampling, **values)
    state.apply(*map(torch.from_numpy, diff.joined()))
    return state


@settings(max_examples=50, deadline=None)
@given(st.integers(0, NUM_SLOTS - 1), samplings(), field_values())
def test_the_device_reads_the_bits_that_were_put_and_other_slots_stay(
    slot: int, sampling: TokenSampling, values: dict[str, Any]
) -> None:
    state = written(slot, sampling, values)
    for field in FIELDS:
        value = values[field.name] if field.of is None else field.of(sampling)
        dtype = np.float32 if field.is_float else np.int32
        there = state[field.name].numpy()
        assert there.dtype == dtype
        mine = there[slot] if field.width == 1 else there[slot, : len(value)]
        assert mine.tobytes() == np.array(value, dtype).tobytes(), field.name
        rest = np.delete(there, slot, axis=0)
        assert not rest.any(), f"{field.name} is written in other slots"


@pytest.mark.parametrize(
    ("lacking", "more", "said"),
    [
        ("computed", {}, r"lacks \['computed'\]"),
        ("", {"draft_len": 0}, r"\['draft_len'\] besides"),
        ("", {"top_p": 0.5}, r"\['top_p'\] besides"),
        ("prompt_len", {"prompt_length": 1}, r"lacks \['prompt_len'\].*\['prompt_length'\]"),
    ],
)
def test_a_missing_or_unknown_name_raises(lacking: str, more: dict[str, Any], said: str) -> None:
    values = {field.name: 0 for field in FIELDS if field.of is None and field.name != lacking}
    with pytest.raises(TypeError, match=said):
        written(0, SAMPLING, values | more)


def test_a_list_longer_than_its_field_does_not_reach_the_next_slot() -> None:
    values = {field.name: [] if field.width != 1 else 0 for field in FIELDS if field.of is None}
    with pytest.raises(ValueError, match=f"tokens has {MAX_LEN} words, not {MAX_LEN + 1}"):
        written(0, SAMPLING, values | {"tokens": range(MAX_LEN + 1)})


def test_the_sampler_reads_the_fields_of_its_names() -> None:
    layout = StateLayout(num_slots=NUM_SLOTS, max_model_len=MAX_LEN, max_blocks=1, num_groups=1)
    state = DeviceState(layout, torch.device("cpu"))
    names = {field.name for field in FIELDS}
    for each in fields(SamplingState):
        name, tensor = each.name.rpartition("_")[0], getattr(state.sampling, each.name)
        assert (tensor is None) == (name not in names)
        assert tensor is None or tensor.data_ptr() == state[name].data_ptr()
        assert tensor is None or tensor.is_contiguous()


def test_a_field_of_one_word_and_a_table_of_one_block_differ_in_their_axes() -> None:
    layout = StateLayout(num_slots=NUM_SLOTS, max_model_len=MAX_LEN, max_blocks=1, num_groups=1)
    state = DeviceState(layout, torch.device("cpu"))
    assert state["computed"].shape == (NUM_SLOTS + 1,)
    assert state["table0"].shape == (NUM_SLOTS + 1, 1)


def test_a_state_takes_the_bytes_that_a_budget_counts() -> None:
    sizes = {"num_slots": NUM_SLOTS, "max_model_len": MAX_LEN, "max_blocks": 4, "num_groups": 2}
    arena = DeviceState(StateLayout(**sizes), torch.device("cpu")).arena
    assert arena.nbytes == state_bytes(**sizes)
