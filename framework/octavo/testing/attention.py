"""What an attention backend computes, against a dense softmax in float64.

Axis suffixes: T tokens of a step, C of a row's context, H query heads, K key heads, D head dim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from octavo.testing.report import Check, tried, unclaimed
from octavo.testing.step_building import StepBuilder
from octavo_registry import (
    AttentionBackend,
    AttentionStep,
    CacheSpec,
    PluginHost,
    QKTransform,
    StepBounds,
    StoresRows,
)
from octavo_registry.faults import FAILURES, one_line

BLOCK_TOKENS: Final = 16
WINDOW: Final = 11
HEADS, KV_HEADS = 4, 2
LARGEST_ERROR: Final = {"float32": 1e-4, "bfloat16": 3e-2, "float16": 1e-2}
"""Largest error of results, which are of size 1."""
KINDS: Final = (
    "full",
    "window",
    "latent",
    "cross",
    "media",
    "step",
    "step, all of a row seen",
    "step, a window to both sides",
)
STEPS: Final = (
    ((0, 9), (1, 20), (2, 1)),
    ((2, 1), (0, 1), (1, 1)),
    ((1, 17), (3, 5), (0, 3)),
    ((0, 1), (1, 1), (2, 1), (3, 1)),
)
"""Rows and how many tokens each gets: prompts, decoding, a chunk beside prompts, decoding."""

Keywords = Mapping[str, Any]


def check_attention(host: PluginHost, name: str) -> list[Check]:
    """Try each kind of cache that the backend supports on a device of this machine."""
    title = f"attention backend {name!r}"
    make = partial(host.attention_backends.make, name)
    checks: list[Check] = []
    refused = []
    for kind in KINDS:
        found, reason = _supported(make(), kind)
        if found is None:
            refused.append(f"{kind}: {reason}")
            continue
        spec, device = found
        checks += _checks(f"{title}, {kind} cache", make, spec, device)
    if not checks:
        checks.append(unclaimed(f"{title} attends", f"it supports nothing here; {refused[0]}"))
    elif refused:
        checks.append(unclaimed(f"{title}, other caches", "; ".join(refused)))
    return checks


def _supported(
    backend: AttentionBackend, kind: str
) -> tuple[tuple[CacheSpec, torch.device] | None, str]:
    """A cache of that kind which the backend takes, and where; else why it takes none."""
    devices = ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]
    reason = ""
    for device in map(torch.device, devices):
        for dtype in LARGEST_ERROR:
            for head_dim in (16, 64, 128):
                spec = _spec(kind, head_dim, dtype)
                answer = backend.supports(spec, device)
                if answer is None:
                    return (spec, device), ""
                if not isinstance(answer, str) or not answer:
                    raise TypeError(f"supports returned {answer!r}, not None or a reason")
                reason = answer
    return None, reason


def _spec(kind: str, head_dim: int, dtype: str) -> CacheSpec:
    heads: dict[str, Any] = {"kv_heads": KV_HEADS, "head_dim": head_dim, "dtype": dtype}
    match kind:
        case "window":
            return CacheSpec.sliding(window=WINDOW, **heads)
        case "latent":
            large = head_dim == 128
            key_dim, value_dim = (576, 512) if large else (head_dim + head_dim // 2, head_dim)
            return CacheSpec.latent(key_dim=key_dim, value_dim=value_dim, dtype=dtype)
        case "cross":
            return CacheSpec.cross(rows=40, **heads)
        case "media":
            return CacheSpec.media(heads=HEADS, width=3 * head_dim, dtype=dtype, rows=40)
        case "step":
            return CacheSpec.in_step(**heads)
        case "step, all of a row seen":
            return CacheSpec.in_step(sees="all", **heads)
        case "step, a window to both sides":
            return CacheSpec.in_step(sees="all", window=WINDOW, **heads)
    return CacheSpec.full(**heads)


def _checks(
    title: str, make: Callable[[], AttentionBackend], spec: CacheSpec, device: torch.device
) -> Iterator[Check]:
    where = f"equals a dense softmax ({spec.dtype} on {device})"
    if spec.rows is not None:
        yield tried(f"{title} {where}", _cross_problems(make(), spec, device))
        return
    plain = tried(f"{title} {where}", _Trial(make(), spec, device).problems())
    yield plain
    if not plain.passed:
        return
    generator = torch.Generator().manual_seed(7)
    options: dict[str, Keywords] = {
        "a soft cap": {"softcap": 0.7},
        "sinks": {"sinks": torch.randn(HEADS, generator=generator)},
        "alibi": {"alibi": torch.rand(HEADS, generator=generator)},
    }
    if spec.kind != "step":  # of which the spec says what is seen
        options["all of a row seen"] = {"causal": False}
    for option, keywords in options.items():
        there = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in keywords.items()}
        yield _or_refused(f"{title} with {option}", _Trial(make(), spec, device, there))
    for part in ("norms", "a rotation"):
        trial = _Trial(make(), spec, device, transform=part)
        yield _or_refused(f"{title} with {part} of queries and keys", trial)
    if make().batch_invariant:
        name = f"{title} gives a row the same bits alone and in a batch"
        yield tried(name, _Trial(make(), spec, device).bit_problems())


def _or_refused(name: str, trial: _Trial) -> Check:
    """What is not supported must raise; what is ignored gives other results."""
    try:
        problem = next(trial.problems(), None)
    except FAILURES as error:
        return unclaimed(name, f"refused, {one_line(error)}")
    return Check(name=name, passed=problem is None, detail=problem or "")


@dataclass(slots=True)
class _Trial:
    """One backend over a few steps, and what its rows hold."""

    backend: AttentionBackend
    spec: CacheSpec
    device: torch.device
    keywords: Keywords = field(default_factory=dict)
    transform: str = ""
    _keys: dict[int, list[Tensor]] = field(default_factory=dict)
    _values: dict[int, list[Tensor]] = field(default_factory=dict)
    _generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))

    def problems(self) -> Iterator[str]:
        """Where results differ from the dense ones: in a step, or once blocks were moved."""
        builder = self._builder()
        for number, rows in enumerate(STEPS):
            # Where steps are recorded, the host's lengths are upper bounds.
            late = 3 if self.backend.most_recorded_queries and number == len(STEPS) - 1 else 0
            found_THD, expected_THD = self._step(builder, rows, late)
            yield from self._difference(f"step {number + 1}", found_THD, expected_THD)
            builder.move_blocks()
            if self.spec.kind == "step":
                self._keys.clear()
                self._values.clear()

    def bit_problems(self) -> Iterator[str]:
        """Whether a row's results depend on its neighbours."""
        results = []
        for others in ((), ((1, 20), (2, 1))):
            self._generator.manual_seed(0)
            builder = self._builder()
            self._keys.clear()
            self._values.clear()
            found_THD, _ = self._step(builder, ((0, 9), *others), 0, batch_invariant=True)
            results.append(found_THD[:9])
        if not torch.equal(*results):
            yield "a row of 9 tokens has other bits beside two others"

    @property
    def _asked(self) -> Keywords:
        return {"causal": self.spec.sees == "before", **self.keywords}

    def _builder(self) -> StepBuilder:
        builder = StepBuilder(
            {"layer": self.spec},
            self.backend,
            num_blocks=64,
            block_tokens=BLOCK_TOKENS,
            device=str(self.device),
        )
        for _ in range(1 + max(row for rows in STEPS for row, _ in rows)):
            builder.add_row()
        return builder

    def _random(self, *shape: int) -> Tensor:
        dtype: torch.dtype = getattr(torch, self.spec.dtype)
        return torch.randn(shape, generator=self._generator).to(self.device, dtype)

    def _step(
        self,
        builder: StepBuilder,
        rows: tuple[tuple[int, int], ...],
        late: int,
        *,
        batch_invariant: bool = False,
    ) -> tuple[Tensor, Tensor]:
        spec = self.spec
        # Each row's tensors are drawn in turn, so that they do not depend on the others.
        pieces = [
            (
                self._random(count, HEADS, spec.key_dim),
                self._random(count, spec.kv_heads, spec.key_dim),
                self._random(count, spec.kv_heads, spec.value_dim),
            )
            for _, count in rows
        ]
        q_THD, k_TKD, v_TKD = map(torch.cat, zip(*pieces, strict=True))
        built = builder.step(list(rows), late_tokens=late)
        step = built.groups[0]
        if batch_invariant:
            step.batch_invariant = True
            step.prepared = self.backend.prepare(step, spec)
        transform = self._transform(step.positions_T)
        is_latent = spec.kind == "latent"
        expected_THD = self._expected(rows, q_THD, k_TKD, None if is_latent else v_TKD, transform)
        found_THD = self.backend.attend(
            q_THD.clone(),
            k_TKD.clone(),
            None if is_latent else v_TKD,
            built.layers["layer"].view,
            step,
            scale=0.3,
            window=spec.window,
            transform=transform,
            **self._asked,
        )
        return found_THD, expected_THD

    def _transform(self, positions_T: Tensor) -> QKTransform:
        """As layers give it; with ``transform`` it does something."""
        dim, dtype = self.spec.key_dim, getattr(torch, self.spec.dtype)
        if self.transform == "norms":
            weight_D = (torch.arange(dim, device=self.device) % 3 + 0.5).to(dtype)
            return QKTransform(q_norm_D=weight_D, k_norm_D=weight_D.flip(0), eps=0.3)
        if self.transform:
            speeds_F = torch.arange(1, dim // 2 + 1, device=self.device) / dim
            angles_TF = positions_T[:, None] * speeds_F
            return QKTransform(cos_TF=angles_TF.cos().to(dtype), sin_TF=angles_TF.sin().to(dtype))
        return QKTransform()

    def _expected(
        self,
        rows: tuple[tuple[int, int], ...],
        q_THD: Tensor,
        k_TKD: Tensor,
        v_TKD: Tensor | None,
        transform: QKTransform,
    ) -> Tensor:
        q_THD = _transformed(q_THD.double(), transform, transform.q_norm_D)
        k_TKD = _transformed(k_TKD.double(), transform, transform.k_norm_D)
        v_TKD = k_TKD[..., : self.spec.value_dim] if v_TKD is None else v_TKD.double()
        results, first = [], 0
        for row, count in rows:
            span = slice(first, first + count)
            self._keys.setdefault(row, []).append(k_TKD[span])
            self._values.setdefault(row, []).append(v_TKD[span])
            keys, values = torch.cat(self._keys[row]), torch.cat(self._values[row])
            results.append(dense(q_THD[span], keys, values, self.spec.window, **self._asked))
            first += count
        return torch.cat(results)

    def _difference(self, when: str, found_THD: Any, expected_THD: Tensor) -> Iterator[str]:
        yield from difference(when, found_THD, expected_THD, self.spec.dtype)


def difference(when: str, found_THD: Any, expected_THD: Tensor, dtype: str) -> Iterator[str]:
    """Say so if a result is not the expected one."""
    if not isinstance(found_THD, Tensor) or found_THD.shape != expected_THD.shape:
        shape = list(found_THD.shape) if isinstance(found_THD, Tensor) else type(found_THD).__name__
        yield f"{when}: attend returned {shape}, not a tensor of {list(expected_THD.shape)}"
        return
    error = float((found_THD.double() - expected_THD).abs().max())
    if not error <= LARGEST_ERROR[dtype]:
        yield f"{when}: results differ by {error:.2g}, and may by {LARGEST_ERROR[dtype]}"


def dense(
    q_THD: Tensor,
    k_CKD: Tensor,
    v_CKD: Tensor,
    window: int | None,
    *,
    causal: bool = True,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    alibi: Tensor | None = None,
) -> Tensor:
    """The last tokens of a context attend over it."""
    repeats = q_THD.shape[1] // k_CKD.shape[1]
    k_CHD, v_CHD = (x.repeat_interleave(repeats, dim=1) for x in (k_CKD, v_CKD))
    scores_HTC = torch.einsum("thd,chd->htc", q_THD, k_CHD) * 0.3
    if softcap is not None:
        scores_HTC = softcap * torch.tanh(scores_HTC / softcap)
    places_C = torch.arange(len(k_CKD), device=q_THD.device)
    back_TC = places_C[-len(q_THD) :, None] - places_C  # how far behind the query
    if alibi is not None:
        scores_HTC = scores_HTC - alibi.double()[:, None, None] * back_TC.abs()
    hidden_TC = (back_TC < 0) & causal
    if window is not None:
        hidden_TC = hidden_TC | (back_TC >= window) | (back_TC <= -window)
    scores_HTC = scores_HTC.masked_fill(hidden_TC, -torch.inf)
    if sinks is not None:
        sinks_HT1 = sinks.double()[:, None, None].expand(-1, len(q_THD), 1)
        scores_HTC = torch.cat((scores_HTC, sinks_HT1), dim=2)
    weights_HTC = scores_HTC.softmax(dim=2)[..., : len(k_CKD)]
    return torch.einsum("htc,chd->thd", weights_HTC, v_CHD)


def _transformed(x_TXD: Tensor, transform: QKTransform, norm_D: Tensor | None) -> Tensor:
    if norm_D is not None:
        variance = x_TXD.square().mean(dim=-1, keepdim=True)
        x_TXD = x_TXD * (variance + transform.eps).rsqrt() * norm_D.double()
    if transform.cos_TF is None or transform.sin_TF is None:
        return x_TXD
    cos, sin = transform.cos_TF.double()[:, None], transform.sin_TF.double()[:, None]
    first, second = x_TXD.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def _cross_problems(
    backend: AttentionBackend, spec: CacheSpec, device: torch.device
) -> Iterator[str]:
    """Rows of encoded media are stored once; tokens of a sequence see all of them."""
    if not isinstance(backend, StoresRows):
        yield f"it supports the kind {spec.kind}, and has no store"
        return
    trial = _Trial(backend, spec, device)
    builder = StepBuilder(
        {"layer": spec}, backend, num_blocks=16, block_tokens=BLOCK_TOKENS, device=str(device)
    )
    num_rows, num_tokens = 37, 5
    builder.add_row()
    group = builder.step([(0, num_rows)]).groups[0]
    view = builder.layers["layer"].view
    q_THD = trial._random(num_tokens, HEADS, spec.key_dim)
    if spec.kind == "media":  # keys and values of all heads at once
        k_MKD = v_MKD = trial._random(num_rows, 1, spec.key_dim)
        backend.store(k_MKD, None, view, group.slots_T)
    else:
        k_MKD, v_MKD = (trial._random(num_rows, KV_HEADS, spec.key_dim) for _ in range(2))
        backend.store(k_MKD, v_MKD, view, group.slots_T)
    step = _queries_of(group, num_tokens, num_rows)
    step.prepared = backend.prepare(step, spec)
    found_THD = backend.attend(q_THD.clone(), None, None, view, step, scale=0.3, causal=False)
    expected_THD = dense(q_THD.double(), k_MKD.double(), v_MKD.double(), None, causal=False)
    yield from difference("the step", found_THD, expected_THD, spec.dtype)


def _queries_of(group: AttentionStep, num_tokens: int, num_rows: int) -> AttentionStep:
    """A row of which so many tokens see so many rows of media."""
    starts_R1 = torch.tensor([0, num_tokens], dtype=torch.int32, device=group.slots_T.device)
    return replace(
        group,
        query_starts_R1=starts_R1,
        context_lens_R=torch.full_like(group.context_lens_R, num_rows),
        token_rows_T=torch.zeros_like(group.token_rows_T[:num_tokens]),
        positions_T=group.positions_T[:num_tokens],
        slots_T=group.slots_T[:num_tokens],
        bounds=StepBounds(
            query_lens_R=np.array([num_tokens], np.int32),
            context_lens_R=np.array([num_rows], np.int32),
        ),
    )
