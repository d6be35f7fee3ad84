from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from services.planner.batch.choose import money_text
from services.planner.batch.prices import PriceFile
from services.planner.serve.growth import Growth
from services.planner.serve.plan import SHARE, Demand, ServePlan, first_token_ms


class GrowthRow(NamedTuple):
    plan: ServePlan
    needs: Growth


def per_hour(plan: ServePlan, prices: PriceFile) -> float | None:
    """Return the price of the plan's accelerators per hour; None if it is unknown."""
    price = next((each.per_hour for each in prices.rented if each.gpu == plan.kind.gpu), None)
    return None if price is None else price * plan.gpus


def cheapest(plans: Sequence[ServePlan], prices: PriceFile) -> ServePlan | None:
    """Return the plan with the lowest price. If no price is known, return the one with the fewest GPUs."""
    priced = [(price, plan.gpus, plan) for plan in plans if (price := per_hour(plan, prices)) is not None]
    return min(priced, key=lambda each: each[:2])[2] if priced else min(plans, key=lambda plan: plan.gpus, default=None)


def lines(
    demand: Demand, prices: PriceFile, plans: Sequence[ServePlan], refused: Sequence[str], grown: Sequence[GrowthRow]
) -> Iterator[str]:
    limits = demand.limits
    promises = [
        f"{what} {ms:g} ms{about}"
        for what, ms, about in (
            ("first token within", limits.ttft_ms, ""), ("the answer within", limits.total_ms, ""),
            ("a token each", limits.token_ms, " on average"),
        )
        if ms is not None
    ]  # fmt: skip
    yield (
        f"{demand.users:,} users, a request each {demand.every_s:g} s: {demand.rate:.1f} requests/s of {demand.prompt} "
        f"tokens ({demand.cached} cached) and {demand.output} of answer"
    )
    yield f"promised to {SHARE:.0%}: {'; '.join(promises) or 'nothing'}"
    yield ""
    width = max([len(plan.kind.name) for plan in plans] + [6])
    yield (
        f"  {'engine':<{width}} {'engines':>7} {'GPUs':>5} {'$/h':>9} {'load':>5} {'first p50':>9} {'p99 ms':>7} "
        f"{'token ms':>8} {'running':>7}  one more would exceed"
    )
    chosen = cheapest(plans, prices)
    for plan in plans:
        price = per_hour(plan, prices)
        load = demand.rate / plan.engines / plan.max_rate
        yield (
            f"{'*' if plan is chosen else ' '} {plan.kind.name:<{width}} {plan.engines:>7} {plan.gpus:>5} "
            f"{'?' if price is None else money_text(price):>9} {load:>5.0%} "
            f"{first_token_ms(plan.seen, demand, 0.5):>9.0f} {first_token_ms(plan.seen, demand, SHARE):>7.0f} "
            f"{plan.seen.token_ms:>8.1f} {plan.seen.running * plan.engines:>7.0f}  {plan.limit}"
        )
    if chosen is not None:
        yield "* the cheapest that keeps the promise"
        most = chosen.kind.max_seqs
        if most is not None:
            yield f"  up to {most} answers run in each engine: set RAILBUS_VLLM_MAX_SEQS={most} (default: 64)"
    for sentence in refused:
        yield f"not possible: {sentence}"
    if grown:
        yield ""
        yield from _growth(grown)


def as_json(
    demand: Demand, prices: PriceFile, plans: Sequence[ServePlan], refused: Sequence[str], grown: Sequence[GrowthRow]
) -> dict[str, Any]:
    chosen = cheapest(plans, prices)
    limits = demand.limits
    return {
        "demand": {
            "users": demand.users, "every_s": demand.every_s, "rate": demand.rate, "prompt": demand.prompt,
            "cached": demand.cached, "output": demand.output, "ttft_ms": limits.ttft_ms, "token_ms": limits.token_ms,
            "total_ms": limits.total_ms,
        },
        "engines": [_as_json(demand, prices, plan) for plan in plans],
        "cheapest": None if chosen is None else chosen.kind.name,
        "not_possible": list(refused),
        "growth": [
            {
                "streams": row.needs.streams, "engines": row.plan.engines, "gpus": row.plan.gpus,
                "per_hour": per_hour(row.plan, prices), "chunks_per_second": row.needs.chunks,
                "cores": row.needs.cores, "partitions": row.needs.partitions, "brokers": row.needs.brokers,
                "cells": row.needs.cells,
            }
            for row in grown
        ],
    }  # fmt: skip


def _as_json(demand: Demand, prices: PriceFile, plan: ServePlan) -> dict[str, Any]:
    return {
        "engine": plan.kind.name, "engines": plan.engines, "gpus": plan.gpus, "per_hour": per_hour(plan, prices),
        "most_per_second": plan.max_rate, "ttft_p50_ms": first_token_ms(plan.seen, demand, 0.5),
        "ttft_p99_ms": first_token_ms(plan.seen, demand, SHARE), "token_ms": plan.seen.token_ms,
        "running": plan.seen.running * plan.engines, "limit": plan.limit,
        "capacity": plan.kind.capacity, "max_seqs": plan.kind.max_seqs,
    }  # fmt: skip


def _growth(grown: Sequence[GrowthRow]) -> Iterator[str]:
    yield f"growth, on paper, with {grown[0].plan.kind.name}:"
    yield (
        f"{'streams':>10} {'engines':>8} {'GPUs':>8} {'chunks/s':>11} {'cores':>7} {'partitions':>10} {'brokers':>8} "
        f"{'cells':>5}"
    )
    for plan, needs in grown:
        yield (
            f"{needs.streams:>10,} {plan.engines:>8,} {plan.gpus:>8,} {needs.chunks:>11,.0f} {needs.cores:>7,} "
            f"{needs.partitions:>10,} {needs.brokers:>8,} {needs.cells:>5,}"
        )
    yield "cores, partitions and brokers follow from figures of a small machine: measure before you buy"
