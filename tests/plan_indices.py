"""Places in tables that a plan names, and the positions of media: within bounds and as given."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from octavo.messages import EngineRequest
from octavo.scheduling.slots import SlotTable
from octavo.steps.plan import StepPlan, split_sections
from scheduling_cases import MAX_LEN, MEDIA_ROWS, NUM_RANK_ROWS
from shadow_device import ShadowDevice

AXES = 3


def made_positions(prompt: list[int], max_tokens: int) -> bytes:
    """Of every third prompt: what a picture or a video in its middle makes of them."""
    length = len(prompt)
    middle = length // 2
    if length % 3 or middle < 2:
        return b""
    positions_AP = np.tile(np.arange(length, dtype=np.int32), (AXES, 1))
    if length % 2 and length + max_tokens + middle <= MAX_LEN:  # a video, long in time
        positions_AP[0, 1 : 1 + middle] = 1 + 2 * np.arange(middle)
        positions_AP[1:, 1 : 1 + middle] = 1
    else:  # a picture of so many columns, in one row
        positions_AP[:2, 1 : 1 + middle] = 1
    behind = int(positions_AP[:, middle].max()) + 1
    positions_AP[:, 1 + middle :] = behind + np.arange(length - middle - 1)
    if not length % 2:  # of several rows: fewer positions than tokens
        positions_AP[:, 1 + middle :] -= middle // 2
        positions_AP[2, 1 : 1 + middle] = 1 + np.arange(middle) % (middle - middle // 2)
    return positions_AP.tobytes()


def position_of(request: EngineRequest, token: int) -> tuple[int, ...]:
    """Of one token, by axis."""
    if not request.positions:
        return (token,) * AXES
    positions_AP = np.frombuffer(request.positions, np.int32).reshape(AXES, -1)
    length = positions_AP.shape[1]
    if token < length:
        return tuple(positions_AP[:, token].tolist())
    return (int(positions_AP[:, -1].max()) + 1 + token - length,) * AXES


def check_indices(
    plan: StepPlan, device: ShadowDevice, rows: SlotTable, requests: Mapping[int, EngineRequest]
) -> None:
    """Before the step runs."""
    parts = split_sections(plan.buffer, plan.sizes)
    num_slots, (num_blocks, block_tokens) = device.state.num_slots, device.pages.shape
    bounds = {
        "diff_indices": device.state.num_words,
        "slots": num_slots,
        "sample_slots": num_slots + 1,  # and the padding's
        "logit_tokens": plan.num_tokens,
        "held": 2 * num_slots,
        "family_rows": len(parts.sample_slots),
        "media_tokens": plan.num_tokens,
        "positions": MAX_LEN,
        "media_rows": MEDIA_ROWS,
        "cross_rows": MEDIA_ROWS,
        "cross_slots": num_blocks * block_tokens,
    }
    for name, bound in bounds.items():
        places = getattr(parts, name)
        assert ((places >= 0) & (places < bound)).all(), (name, places, bound)
    for (first, rank), _ in plan.adapters:
        assert 0 <= first <= first + rank <= NUM_RANK_ROWS
    moves = plan.moves
    blocks = [b for b, _ in moves.swap_out] + [b for _, b in moves.swap_in]
    blocks += [block for pair in moves.copy for block in pair]
    assert all(0 <= block < num_blocks for block in blocks)
    swaps = [s for _, s in moves.swap_out] + [s for s, _ in moves.swap_in]
    assert all(0 <= swap < len(device.swap) for swap in swaps)
    if len(parts.positions):
        starts = plan.context_lens - plan.query_lens
        expected = [
            position_of(requests[int(rows.sequence_ids_S[slot])], token)
            for slot, start, count in zip(plan.slots, starts, plan.query_lens, strict=True)
            for token in range(start, start + count)
        ]
        assert parts.positions.reshape(AXES, -1).T.tolist() == [list(each) for each in expected]


def held_kinds(plan: StepPlan, num_slots: int) -> list[str]:
    """What rows without a token of their own are there for."""
    held = split_sections(plan.buffer, plan.sizes).held.tolist()
    return ["put off" if line < num_slots else "forked" for line in held]


def check_deltas(
    plan: StepPlan, device: ShadowDevice, rows: SlotTable, requests: Mapping[int, EngineRequest]
) -> None:
    """Once it has run: what the device adds to tokens' numbers where a plan names no positions."""
    deltas_S = device.field("position_delta")
    for slot, context in zip(plan.slots, plan.context_lens, strict=True):
        request = requests[int(rows.sequence_ids_S[slot])]
        token = max(int(context), len(request.prompt_token_ids))
        assert deltas_S[slot] == position_of(request, token)[0] - token
