"""What is known of one request after a run; all that the statistics are made of."""

from __future__ import annotations

from itertools import pairwise

import msgspec


class Record(msgspec.Struct, array_like=True):
    """One request as its client saw it; times are of the machine's monotonic clock."""

    number: int
    """Its place in the list of requests."""
    sent: float
    times: list[float]
    """When each event with output came."""
    ended: float
    num_prompt_tokens: int
    num_output_tokens: int
    """As the server counted them; as many as events if it did not."""
    error: str = ""
    """Empty for an answer that is whole."""

    @property
    def ttft(self) -> float:
        """Seconds to the first token."""
        return (self.times[0] if self.times else self.ended) - self.sent

    @property
    def e2e(self) -> float:
        """Seconds to the end of the answer."""
        return self.ended - self.sent

    @property
    def tpot(self) -> float | None:
        """Seconds a token after the first; None where there is one token only."""
        if self.num_output_tokens < 2:
            return None
        return (self.e2e - self.ttft) / (self.num_output_tokens - 1)

    def gaps(self) -> list[float]:
        """Seconds between events, which hold a token each unless the server joins some."""
        return [later - early for early, later in pairwise(self.times)]
