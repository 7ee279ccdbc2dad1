"""What a new sampling parameter takes: a line in params, the field table, the server, its kernel.

One is added in a copy of the tree, and followed from an HTTP body to a sample.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from markdown import ROOT
from octavo_kernels.sample import SamplingState
from octavo_kernels.sample.parameters import KernelParameters

STATE = fields(SamplingState)
PARAMETERS = "kernels/octavo_kernels/sample/parameters.cuh"
PACKAGES = ("framework/octavo", "kernels/octavo_kernels", "registry/octavo_registry")
ADDED = {
    "framework/octavo/params.py": [
        ("    min_p: float = number", "    zero_bias: float = number(0.0, -100.0, 100.0)\n")
    ],
    "framework/octavo/steps/slot_fields.py": [
        (
            '    SlotField("min_p"',
            '    SlotField("zero_bias", lambda s: s.zero_bias, True, '
            "feature=RowFeature.ZERO_BIAS),\n"
            # Fields that drafts may bring, not all of which anybody gives.
            '    SlotField("draft_len", lambda s: 0),\n'
            '    SlotField("draft_cap", lambda s: s.max_tokens),\n'
            '    SlotField("draft_source", lambda s: -1),\n'
            '    SlotField("accept_estimate", lambda s: 0.7, True),\n'
            '    SlotField("draft_end"),\n'
            '    SlotField("draft_line"),\n',
        )
    ],
    "framework/octavo/scheduling/slots.py": [
        (
            "            min_len=min_len,\n",
            "            draft_end=sequence.max_len,\n            draft_line=7,\n",
        )
    ],
    "framework/octavo/server/protocol/sampling.py": [
        ("    min_p: float |", "    zero_bias: float | msgspec.UnsetType = msgspec.UNSET\n")
    ],
    "kernels/octavo_kernels/row_features.py": [
        ("    RANDOM =", "    ZERO_BIAS = 256\n"),
        ("class Work(", "EDITS |= RowFeature.ZERO_BIAS\n\n\n"),
    ],
    "kernels/octavo_kernels/sample/state.py": [
        ("    presence_S:", "    zero_bias_S: Tensor = field(metadata=_FLOATS)\n")
    ],
    PARAMETERS: [("  const float* presence;", "  const float* zero_bias;\n")],
    "kernels/octavo_kernels/sample/reference.py": [
        (
            "    is_edited =",
            "    scores_RV = scores_RV.clone()\n"
            "    scores_RV[:, 0] += state.zero_bias_S[slots_R]\n",
        )
    ],
}
"""By file: what begins a line, and what is put before it."""
WALK = """
import json, re, sys
import msgspec
import numpy as np
import torch
from octavo.inputs.sampling import SamplingLimits, resolve_sampling
from octavo.messages import EngineRequest
from octavo.params import SamplingParams
from octavo.scheduling.sequence import Sequence
from octavo.scheduling.slots import SlotTable
from octavo.server.apis.completions.body import CompletionRequest
from octavo.steps.device_state import DeviceState
from octavo.steps.layout import StateDiff, StateLayout
from octavo_kernels.row_features import work_of
from octavo_kernels.sample import sample
from octavo_kernels.sample.parameters import KernelParameters

limits = SamplingLimits(max_model_len=9, vocab_size=4, eos_token_ids=(), tokenizer=None, seeds=None)
layout = StateLayout(num_slots=3, max_model_len=9, max_blocks=1, num_groups=1)
state, table, diff = DeviceState(layout, torch.device("cpu")), SlotTable(3, 9), StateDiff(layout)
slots = []
for index, given in enumerate([{}, {"zero_bias": 1.5}, {"zero_bias": 3.25}]):
    body = {"prompt": "", "seed": 1, "temperature": 0, "max_tokens": 3, **given}
    parsed = msgspec.json.decode(msgspec.json.encode(body), type=CompletionRequest)
    params = parsed.params(SamplingParams(), room=9)
    sampling = resolve_sampling(params, limits, num_prompt_tokens=2)
    request = EngineRequest(
        request_id="", sequences=(index,), prompt_token_ids=[1, 2], sampling=sampling
    )
    crossed = msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=EngineRequest)
    slots.append(table.enter(Sequence(crossed, 0, index, b""), 0, diff))
state.apply(*map(torch.from_numpy, diff.joined()))
logits_RV = torch.tensor([[0.0, 1.0, 2.0, 0.5]]).expand(3, 4)
tokens_R = sample(
    logits_RV,
    torch.tensor(slots, dtype=torch.int32),
    state.sampling,
    work=work_of(table.features_S),
)
drafts = ("draft_len", "draft_cap", "draft_source", "accept_estimate", "draft_end", "draft_line")
json.dump(
    {
        "tokens": tokens_R.tolist(),
        "zero_bias": state.sampling.zero_bias_S[slots].tolist(),
        "drafts": [round(state[name][slots[0]].item(), 6) for name in drafts],
        "names": [re.sub("_[A-Z0-9]+$", "", name) for name, _ in KernelParameters._fields_],
    },
    sys.stdout,
)
"""


def c_fields(source: str) -> list[tuple[bool, str]]:
    """The kernels' structure in its order: whether a field is of floats, and its name."""
    body = source.split("struct Parameters {")[1].split("\n};")[0]
    found = re.findall(r"^ +([\w ]+)\*? ?(\b\w+);", body, re.MULTILINE)
    return [(kind.strip().endswith("float"), name) for kind, name in found]


def copy_of(files: Sequence[str], target: Path) -> None:
    for package in files:
        for file in (ROOT / package).rglob("*"):
            if file.suffix in {".py", ".cuh"}:
                place = target / file.relative_to(ROOT)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, place)


def test_the_kernels_take_the_state_in_the_order_of_its_fields() -> None:
    in_c = c_fields((ROOT / PARAMETERS).read_text())
    names = [name for name, _ in KernelParameters._fields_]
    tensors = [(each.metadata["dtype"] is torch.float32, each.name) for each in STATE]
    assert in_c[: len(tensors)] == [(is_float, bare(name)) for is_float, name in tensors]
    assert [name for _, name in in_c] == [bare(name) for name in names]


def bare(name: str) -> str:
    """A tensor's name without its axes."""
    return re.sub("_[A-Z0-9]+$", "", name)


def test_a_new_parameter_reaches_the_sampler_by_one_line_in_each_place(tmp_path: Path) -> None:
    copy_of(PACKAGES, tmp_path)
    for name, lines in ADDED.items():
        path = tmp_path / name
        source = path.read_text()
        for anchor, line in lines:
            assert source.count(f"\n{anchor}") == 1, f"{name} has no line {anchor!r} any more"
            source = source.replace(f"\n{anchor}", f"\n{line}{anchor}")
        path.write_text(source)
    paths = os.pathsep.join(str(tmp_path / package.split("/")[0]) for package in PACKAGES)
    run = subprocess.run(
        [sys.executable, "-c", WALK],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    if run.returncode:
        pytest.fail(run.stderr)
    found = json.loads(run.stdout)
    assert found["zero_bias"] == [0.0, 1.5, 3.25]
    assert found["tokens"] == [2, 2, 0], "3.25 lifts token 0 above the 2.0 of the likeliest"
    assert found["drafts"] == [0, 7, -1, 0.7, 9, 7]
    in_c = c_fields((tmp_path / PARAMETERS).read_text())
    assert found["names"] == [name for _, name in in_c]
