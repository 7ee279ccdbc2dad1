"""Which tokens may come next in a transcript: its head, its timestamps, and what is never said.

A transcript is <|startoftranscript|>, a language and a task (where the model has several), with
<|notimestamps|> if its text shall have no times, and the text. Text before that head is context.
Axis suffixes: R rows, L tokens of a row, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from octavo_registry.model import ModelSpec, SequenceTokens


class TokenRules:
    """The rules of one model, on its device; they follow from the tokens alone."""

    def __init__(self, spec: ModelSpec) -> None:
        self._given, self._config = spec.generation_config, spec.config
        device, size = spec.device, spec.config["vocab_size"]
        self._ids_V = torch.arange(size, device=device)
        self._start: int = self._entry("decoder_start_token_id", -1)
        self._end: int = spec.config["eos_token_id"]
        self._no_timestamps: int = self._entry("no_timestamps_token_id", size)
        self._first_time: int = self._no_timestamps + 1
        self._has_times = self._first_time < size
        self._max_first_time: int = self._first_time + self._entry(
            "max_initial_timestamp_index", size
        )
        languages = list((self._entry("lang_to_id", None) or {}).values())
        tasks = self._entry("task_to_id", None) or {}
        self._is_multilingual = bool(languages and tasks)
        self._head_tokens = 3 if self._is_multilingual else 1
        self._not_language_V = ~self._marked(languages)
        self._not_task_V = ~self._marked([tasks["transcribe"]] if self._is_multilingual else [])
        self._never_V = self._marked(self._entry("suppress_tokens", None) or [])
        self._not_first_V = self._marked(self._entry("begin_suppress_tokens", None) or [])

    def __call__(self, logits_RV: Tensor, slots_R: Tensor, so_far: SequenceTokens) -> Tensor:
        """Logits with -inf for what must not come next; they are overwritten."""
        tokens_RL = so_far.tokens_SL.index_select(0, slots_R)
        length_R1 = so_far.num_tokens_S.index_select(0, slots_R).unsqueeze(1)
        places_L = torch.arange(tokens_RL.shape[1], device=tokens_RL.device)
        tokens_RL = tokens_RL.where(places_L < length_R1, -1)  # none is -1
        is_start_RL = tokens_RL == self._start
        start_R1 = _last_place(is_start_RL, places_L)
        head_end_R1 = start_R1 + self._head_tokens
        without_times_R1 = _at(tokens_RL, head_end_R1) == self._no_timestamps
        # Of a prompt without a head nothing is known but that its next token is no first one.
        is_headed_R1 = start_R1 >= 0
        num_said_R1 = length_R1 - head_end_R1 - without_times_R1.int()
        is_said_R1 = ~is_headed_R1 | (num_said_R1 >= 0)

        banned_RV = is_said_R1 & self._never_V
        banned_RV |= is_headed_R1 & (num_said_R1 == 0) & self._not_first_V
        if self._is_multilingual:
            banned_RV |= is_headed_R1 & (length_R1 == start_R1 + 1) & self._not_language_V
            banned_RV |= is_headed_R1 & (length_R1 == start_R1 + 2) & self._not_task_V
        if not self._has_times:
            return logits_RV.masked_fill_(banned_RV, -torch.inf)
        times_R1 = is_headed_R1 & ~without_times_R1 & (num_said_R1 >= 0)
        is_time_RL = (tokens_RL >= self._first_time) & (places_L >= head_end_R1)
        banned_RV |= times_R1 & self._untimely(tokens_RL, length_R1, num_said_R1, is_time_RL)
        logits_RV.masked_fill_(banned_RV, -torch.inf)
        self._keep_likely_times(logits_RV, times_R1)
        return logits_RV

    def _untimely(
        self, tokens_RL: Tensor, length_R1: Tensor, num_said_R1: Tensor, is_time_RL: Tensor
    ) -> Tensor:
        """What breaks the order of times: they begin the text, come in pairs, and never go back."""
        ids_V, first = self._ids_V, self._first_time
        last_R1 = (num_said_R1 >= 1) & (_at(tokens_RL, length_R1 - 1) >= first)
        before_R1 = (num_said_R1 < 2) | (_at(tokens_RL, length_R1 - 2) >= first)
        places_L = torch.arange(tokens_RL.shape[1], device=tokens_RL.device)
        time_place_R1 = _last_place(is_time_RL, places_L)
        opens_R1 = last_R1 & ~before_R1  # of the pair's second, which may be the same time
        least_R1 = _at(tokens_RL, time_place_R1) + (~opens_R1).int()
        least_R1 = least_R1.where(time_place_R1 >= 0, first)
        is_time_V = ids_V >= first
        untimely_RV = last_R1 & before_R1 & is_time_V
        untimely_RV |= opens_R1 & (ids_V < self._end)
        untimely_RV |= is_time_V & (ids_V < least_R1)
        untimely_RV |= ids_V == self._no_timestamps
        untimely_RV |= (num_said_R1 == 0) & (~is_time_V | (ids_V > self._max_first_time))
        return untimely_RV

    def _keep_likely_times(self, logits_RV: Tensor, times_R1: Tensor) -> None:
        """Leave only times where all of them together are likelier than any token of text."""
        text_RV, time_RV = logits_RV.tensor_split([self._first_time], dim=1)
        likeliest_R1 = text_RV.amax(-1, keepdim=True).float()
        are_likelier_R1 = time_RV.float().logsumexp(-1, keepdim=True) > likeliest_R1
        text_RV.masked_fill_(times_R1 & are_likelier_R1, -torch.inf)

    def _entry(self, name: str, default: Any) -> Any:
        """Entry of generation_config.json, or of config.json, where older checkpoints have it."""
        found = self._given.get(name, self._config.get(name))
        return default if found is None else found

    def _marked(self, ids: list[int]) -> Tensor:
        known = [each for each in ids if 0 <= each < len(self._ids_V)]
        chosen = torch.tensor(known, dtype=torch.int64, device=self._ids_V.device)
        return torch.zeros_like(self._ids_V, dtype=torch.bool).index_fill_(0, chosen, True)


def _at(tokens_RL: Tensor, place_R1: Tensor) -> Tensor:
    """The token there; -1 where there is none."""
    length = tokens_RL.shape[1]
    found_R1 = tokens_RL.gather(1, place_R1.clamp(0, length - 1).long())
    return found_R1.where((place_R1 >= 0) & (place_R1 < length), -1)


def _last_place(is_RL: Tensor, places_L: Tensor) -> Tensor:
    """Where it is so for the last time; -1: nowhere."""
    return torch.where(is_RL, places_L, -1).amax(1, keepdim=True)
