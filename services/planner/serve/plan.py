"""Compute how many engines serve a number of users within latency limits. Times are in milliseconds."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from services.physics.batches import batch_kv
from services.physics.catalogue.gpus import Gpu
from services.physics.catalogue.models import Model
from services.physics.catalogue.precisions import Precision
from services.physics.checks import MOST, positive, whole
from services.physics.efficiency import practical
from services.physics.parallel import Layout, communication_ms, divided, group
from services.physics.roofline import KvPrecision, kv_bytes, prefill_flop, require_fit, step_ms, weight_bytes
from services.planner.serve.queue import QueueTimes, StepTime, queue_times

PREFILL_BUDGET: Final = 2_048
"""Maximum number of prompt tokens in a step; vLLM's default for serving."""
SEQUENCES: Final = 256
"""Maximum number of answers that run at the same time in one engine. The default of Railbus is lower, so the report
names the setting (``EngineKind.max_seqs``)."""
RATE_RATIO: Final = 1.002
"""The search for the maximum rate of an engine ends when its upper bound is at most this factor above the lower one."""
MEMORY: Final = 0.9
"""Share of the memory that weights and KV caches may take."""
SHARE: Final = 0.99
"""Share of requests whose latencies must stay within the limits."""
MARGIN: Final = 1.15
"""Factor by which the predicted p99 of the first token is multiplied before it is compared with the limit, because the
prediction may be too low."""
AROUND_MS: Final = 6.0
"""Time in edge, bus and tokenizer, for both directions together, as in ``railbus plan latency``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The latency limits of a class of requests. None means no limit.

    Attributes:
        ttft_ms: 99 % of the requests must get their first token within this time.
        token_ms: The mean time between tokens must not be longer than this.
        total_ms: 99 % of the requests must get their whole answer within this time.
    """

    ttft_ms: float | None = None
    token_ms: float | None = None
    total_ms: float | None = None


READING: Final = Limits(ttft_ms=1_000, token_ms=50)
"""The limits if no class is chosen. With them, text appears faster than people read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The number of users, and the requests that they send.

    Attributes:
        every_s: Seconds between two requests of one user, at the peak.
        prompt: Number of tokens of a prompt.
        cached: Number of prompt tokens that are in the prefix cache.
        output: Number of tokens of an answer.
        rails_ms: Time of the input rails, which run while a request waits in the queue and is prefilled.
    """

    users: int
    every_s: float
    prompt: int
    cached: int
    output: int
    limits: Limits
    rails_ms: float = 20.0

    def __post_init__(self) -> None:
        whole("users", self.users, least=1, most=MOST**2)
        for name, least in (("prompt", 1), ("cached", 0), ("output", 1)):
            whole(name, getattr(self, name), least=least)
        if positive("every (seconds)", self.every_s) > MOST:
            raise ValueError(f"every (seconds) must be at most {MOST:,}, not {self.every_s!r}")
        if self.rate > MOST:
            raise ValueError(f"users and every (seconds): {self.rate:.3g} requests a second, more than {MOST:,}")
        if self.cached >= self.prompt:
            raise ValueError(f"cached must be below the prompt's {self.prompt} tokens, not {self.cached}")

    @property
    def rate(self) -> float:
        return self.users / self.every_s

    @property
    def context(self) -> int:
        """Number of tokens in the KV cache of a sequence halfway through the answer."""
        return self.prompt + self.output // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKind:
    """A kind of engine: its accelerators, and the time of its steps.

    Attributes:
        gpus: Number of accelerators of one engine.
        prompts: Number of prompts that a step can prefill; below 1 if a prompt takes several steps.
        capacity: Maximum number of answers that run at the same time.
        max_seqs: Value of ``RAILBUS_VLLM_MAX_SEQS`` that vLLM needs for this capacity; None for a measured engine,
            which keeps its settings.
    """

    name: str
    gpu: str
    gpus: int
    step_ms: StepTime
    prompts: float
    capacity: int
    max_seqs: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServePlan:
    """The number of engines of one kind that the demand needs.

    Attributes:
        max_rate: Maximum number of requests per second that one engine serves within the limits.
        seen: Latencies if the engines share the demand evenly.
        full: Latencies of an engine that serves ``max_rate`` requests per second.
        limit: Explanation why an engine cannot serve more than ``max_rate`` requests per second.
    """

    kind: EngineKind
    engines: int
    max_rate: float
    seen: QueueTimes
    full: QueueTimes
    limit: str

    @property
    def gpus(self) -> int:
        return self.engines * self.kind.gpus


def engine_kind(model: Model, gpu: Gpu, precision: Precision, layout: Layout, demand: Demand) -> EngineKind:
    """Predict the capacity and the step times of an engine that runs the model on the given accelerators.

    Raises:
        ValueError: The model or an answer does not fit into memory, or the layout does not suit the model.
    """
    shape, ganged = divided(model, layout), group(gpu, layout)
    require_fit(shape, ganged, precision)
    efficiency, kv = practical(gpu), batch_kv(gpu)
    new = demand.prompt - demand.cached
    flop = prefill_flop(shape, new, cached=demand.cached)

    def step(running: int, prompts: float) -> float:
        tokens = round(prompts * new)
        law = step_ms(
            shape, ganged, precision,
            batch=running, context=demand.context, prefill_flop=prompts * flop, prefill_tokens=tokens, kv=kv,
            efficiency=efficiency,
        )  # fmt: skip
        return law + communication_ms(shape, gpu, layout, running + tokens)

    capacity = min(SEQUENCES, answers_in_memory(model, gpu, precision, layout, demand, kv))
    return kind_of(
        f"{layout.tensor} x {gpu.name}, {precision}", gpu.name, layout.gpus, step, demand,
        capacity=capacity, max_seqs=capacity,
    )  # fmt: skip


def answers_in_memory(
    model: Model, gpu: Gpu, precision: Precision, layout: Layout, demand: Demand, kv: KvPrecision
) -> int:
    """Return how many answers fit into the memory of an engine, beside the weights.

    Raises:
        ValueError: No answer fits, or the layout does not suit the model.
    """
    shape = divided(model, layout)
    free = group(gpu, layout).memory_bytes * MEMORY - weight_bytes(shape, precision)
    found = int(free // kv_bytes(shape, demand.prompt + demand.output, kv))
    if found < 1:
        raise ValueError(f"{model.name} in {precision} leaves no room for an answer on {layout.gpus} x {gpu.name}")
    return found


def kind_of(
    name: str, gpu: str, gpus: int, step: Callable[[int, float], float], demand: Demand, *, capacity: int,
    budget: int = PREFILL_BUDGET, max_seqs: int | None = None,
) -> EngineKind:  # fmt: skip
    known: dict[tuple[int, float], float] = {}

    def step_time(running: float, prompts: float) -> float:
        key = (round(running * 64), prompts)  # the search needs the same steps many times
        if key not in known:
            below, share = divmod(key[0], 64)
            value = step(below, prompts)
            known[key] = value + (step(below + 1, prompts) - value) * share / 64 if share else value
        return known[key]

    return EngineKind(
        name=name, gpu=gpu, gpus=gpus, step_ms=step_time, prompts=budget / (demand.prompt - demand.cached),
        capacity=capacity, max_seqs=max_seqs,
    )  # fmt: skip


def missed(seen: QueueTimes | None, demand: Demand) -> str | None:
    """Return a description of the first limit that the latencies ``seen`` exceed; None if they exceed no limit.

    ``seen`` is None if the engine is overloaded. There are no latencies then, and the description says that the engine
    has no room or no time for more requests.
    """
    if seen is None:
        return "no room for more answers, or no time for more prompts"
    limits = demand.limits
    ttft = first_token_ms(seen, demand, SHARE) * MARGIN
    if limits.ttft_ms is not None and ttft > limits.ttft_ms:
        return f"first token within {limits.ttft_ms:g} ms"
    if limits.token_ms is not None and seen.token_ms > limits.token_ms:
        return f"a token each {limits.token_ms:g} ms"
    total = ttft + (demand.output - 1) * seen.token_ms
    return f"answer within {limits.total_ms:g} ms" if limits.total_ms is not None and total > limits.total_ms else None


def first_token_ms(seen: QueueTimes, demand: Demand, share: float) -> float:
    """Return the time within which ``share`` (0 to 1) of the requests get their first token.

    The time spent in edge, Kafka and tokenizer is included.
    """
    return max(seen.ttft_ms(share), demand.rails_ms) + AROUND_MS


def plan_serve(kind: EngineKind, demand: Demand) -> ServePlan:
    """Compute how many engines of ``kind`` the demand needs.

    Raises:
        ValueError: Even a single request on an idle engine exceeds a limit, or the engine answers only one request at a
            time.
    """

    def at(rate: float) -> QueueTimes | None:
        return queue_times(kind.step_ms, rate, demand.output, kind.prompts, kind.capacity)

    if kind.capacity < 2:  # it is always full or idle, so the computation of a queue before it has no meaning
        raise ValueError(f"{kind.name}: it has room for only one answer at a time: give it more slots or memory")
    least = 1e-3
    alone = missed(at(least), demand)
    if alone is not None:
        raise ValueError(f"{kind.name}: {alone} is not met even by an idle engine")
    low, high = least, 1.0
    while missed(at(high), demand) is None and high < demand.rate:
        low, high = high, high * 2
    limit = missed(at(high), demand)
    if limit is not None:
        while high > low * RATE_RATIO:
            middle = math.sqrt(low * high)  # in logarithms, because the bounds may be three orders of magnitude apart
            why = missed(at(middle), demand)
            if why is None:
                low = middle
            else:
                high, limit = middle, why
    else:
        low = high
    engines = max(1, math.ceil(demand.rate / low - 1e-9))
    seen, full = at(demand.rate / engines), at(low)
    if seen is None or full is None:
        raise AssertionError("a smaller load is met")
    limit = limit or "nothing: one engine is enough"
    return ServePlan(kind=kind, engines=engines, max_rate=low, seen=seen, full=full, limit=limit)


def grown(demand: Demand, streams: int, seen: QueueTimes) -> Demand:
    """Return a copy of ``demand`` in which about ``streams`` answers run at once on average.

    It has so many users, and each of them sends a request in the time that an answer takes. This time is computed from
    ``seen``.
    """
    seconds = (seen.ttft_ms(0.5) + demand.output * seen.token_ms) / 1e3
    return replace(demand, users=streams, every_s=seconds)
