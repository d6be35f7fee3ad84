"""Estimate the time and the cost of a batch job on a provider's API that is paid per token."""

import math
from collections.abc import Iterator
from typing import Final

from services.physics.batches import BatchWork
from services.planner.batch.prices import ApiOffer
from services.planner.batch.ways import Range, Way

REACHED: Final = Range(0.8, 0.5, 1.0)
"""Share of a rate limit that a client reaches. Refusals, retries and slow answers lower it. Not measured."""

MILLION: Final = 1e6


def token_money(api: ApiOffer, work: BatchWork) -> Range:
    """Return the price of all tokens as an interval.

    If prompts can be cached, the lower bound assumes that all requests hit the provider's prompt cache, and the upper
    bound assumes that none does.
    """
    full = work.requests * ((work.shared + work.own) * api.input + work.output * api.output) / MILLION
    if api.cached_input is None or not work.prefix_cached:
        return Range(full, full, full)
    saved = work.requests * work.shared * (api.input - api.cached_input) / MILLION
    # Half of the requests hit the prompt cache, all of them, or none.
    return Range(full - saved / 2, full - saved, full)


def limit_per_second(api: ApiOffer, work: BatchWork) -> tuple[float, str]:
    """Return the number of requests per second that the rate limits allow, and the strictest limit as text."""
    tokens = work.shared + work.own + work.output
    limits = [
        (api.requests_per_minute / 60, f"{api.requests_per_minute:,.0f} requests a minute"),
        (api.tokens_per_minute / tokens / 60, f"{api.tokens_per_minute:,.0f} tokens a minute"),
    ]
    if api.requests_per_day is not None:
        limits.append((api.requests_per_day / 86_400, f"{api.requests_per_day:,.0f} requests a day"))
    return min(limits)


def offers(api: ApiOffer, work: BatchWork, score: float | None) -> Iterator[Way]:
    """Yield the ways to run the job at a provider: with its synchronous API and, if it has one, its batch API."""
    most, limit = limit_per_second(api, work)
    at_limit = work.requests / most / 3_600
    hours = Range(at_limit / REACHED.value, at_limit / REACHED.high, at_limit / REACHED.low)
    quality = f"{api.model}, another model"
    yield Way(
        name=api.name, kind="API", hours=hours, money=token_money(api, work),
        per_second=work.requests / hours.value / 3_600, score=score, quality=quality, complexity="low",
        why=f"limited by {limit}",
    )  # fmt: skip
    if api.batch_discount is None:
        return
    full = token_money(api, work).high  # the batch discount is not combined with that for cached prompts
    rounds = 1
    if api.queue_tokens is not None:
        rounds = math.ceil(work.requests * (work.shared + work.own + work.output) / api.queue_tokens)
    promised = rounds * api.batch_hours
    queue = f", {rounds} times: the queue is too short for all" if rounds > 1 else ""
    yield Way(
        name=f"{api.name}, batch lane", kind="API", hours=Range(promised, min(promised, hours.low), promised),
        money=Range(*[full * (1 - api.batch_discount)] * 3), per_second=work.requests / promised / 3_600, score=score,
        quality=quality, complexity="low", why=f"promised within {api.batch_hours:g} h{queue}; often sooner",
    )  # fmt: skip
