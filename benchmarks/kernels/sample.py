"""Times of sampling by kind of row: python -m benchmarks.kernels.sample."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from benchmarks.kernels.timing import READ_TBPS, graph_time_us
from octavo_kernels.row_features import EDITS, RowFeature, work_of
from octavo_kernels.sample import SamplingState, sample

F = RowFeature
VOCAB, NUM_TOKENS = 128256, 1024
KINDS = {
    "greedy": F(0),
    "temperature": F.RANDOM,
    "top_k 50": F.RANDOM | F.TOP_K,
    "top_p 0.95": F.RANDOM | F.TOP_P,
    "min_p 0.05": F.RANDOM | F.MIN_P,
    "k, p, min_p": F.RANDOM | F.TOP_K | F.TOP_P | F.MIN_P,
    "greedy, penalties": F.PENALTY,
    "greedy, all edits": EDITS,
    "everything": F(255),
}


def state_of(num_slots: int, features: RowFeature) -> SamplingState:
    def ints(value: int, *shape: int) -> Tensor:
        return torch.full((num_slots, *shape), value, dtype=torch.int32, device="cuda")

    def floats(value: float, *shape: int) -> Tensor:
        return torch.full((num_slots, *shape), value, device="cuda")

    shape = (num_slots, NUM_TOKENS + 1)
    return SamplingState(
        tokens_SL=torch.randint(0, VOCAB, shape, dtype=torch.int32, device="cuda"),
        num_tokens_S=ints(NUM_TOKENS),
        prompt_len_S=ints(NUM_TOKENS // 2),
        features_S=ints(int(features)),
        temperature_S=floats(0.8),
        top_p_S=floats(0.95),
        min_p_S=floats(0.05),
        presence_S=floats(0.5),
        frequency_S=floats(0.1),
        repetition_S=floats(1.1),
        top_k_S=ints(50),
        seed_S2=torch.randint(0, 2**31, (num_slots, 2), dtype=torch.int32, device="cuda"),
        min_len_S=ints(NUM_TOKENS + 1),
        stop_ids_SK=ints(2, 8),
        bias_ids_SN=ints(5, 1024),
        biases_SN=floats(0.0, 1024),
        allowed_SW=ints(-1, -(-VOCAB // 32)),
        bad_words_SNL=ints(-1, 512, 32),
    )


def calls_of(logits: list[Tensor], features: RowFeature) -> list[Callable[[], Tensor]]:
    """One call for each of the logits, all of whose rows have these features."""
    rows = len(logits[0])
    state = state_of(rows, features)
    work = work_of(np.full(rows, int(features), np.int32))
    slots_R = torch.arange(rows, dtype=torch.int32, device="cuda")
    tokens_R = torch.empty_like(slots_R)
    return [
        functools.partial(sample, logits_RV, slots_R, state, work=work, tokens_R=tokens_R)
        for logits_RV in logits
    ]


def host_us(call: Callable[[], Tensor]) -> float:
    """Time of a launch that waits for nothing."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(100):
        call()
    elapsed = time.perf_counter() - start
    torch.cuda.synchronize()
    return elapsed * 1e4


def main() -> None:
    print(f"V = {VOCAB}, bf16, {NUM_TOKENS} tokens a row; limit at {READ_TBPS} TB/s")
    print(
        f"{'':18}{'rows':>6}{'spread':>8}{'us':>9}{'TB/s':>7}{'limit':>7}{'argmax':>8}{'host':>7}"
    )
    for rows in (1, 8, 32, 256):
        num_bytes = rows * VOCAB * 2
        copies = max(2, min(240, -(-120_000_000 // num_bytes)))
        for spread in (3.0, 0.5):
            logits = [
                (torch.randn(rows, VOCAB, device="cuda") * spread).bfloat16() for _ in range(copies)
            ]
            argmax = graph_time_us(
                [functools.partial(torch.argmax, x, 1) for x in logits], rounds=5
            )
            for name, features in KINDS.items():
                calls = calls_of(logits, features)
                microseconds = graph_time_us(calls, rounds=5)
                print(
                    f"{name:18}{rows:6}{spread:8}{microseconds:9.1f}"
                    f"{num_bytes / microseconds / 1e6:7.2f}{num_bytes / READ_TBPS / 1e6:7.1f}"
                    f"{argmax:8.1f}{host_us(calls[0]):7.1f}"
                )


if __name__ == "__main__":
    main()
