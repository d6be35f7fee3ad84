"""Rate limits per tenant: the generic cell rate algorithm (GCRA), whose state is one timestamp. Pure."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from schemas.requests import Request
from services.edge.delivery.session import DeliverySession

CHARS_PER_TOKEN: Final = 4
"""A common rule of thumb for English. It is needed because the edge does not know the model's tokenizer."""


@dataclass(frozen=True, slots=True)
class Rate:
    """At most ``per_minute`` units on average, such as requests or tokens, and at most ``burst`` in one moment."""

    per_minute: int
    burst: int

    def cost_us(self, units: int = 1) -> int:
        """Return how long the units take at the allowed rate, in microseconds. More than a burst counts as a burst."""
        return min(units, self.burst) * 60_000_000 // self.per_minute

    @property
    def tolerance_us(self) -> int:
        """How far a burst may run ahead of the rate, in microseconds."""
        return self.cost_us(self.burst)


@dataclass(frozen=True, slots=True)
class RateDecision:
    """The result of ``gcra``: the timestamp to keep, and the wait before the units may pass (0: they pass)."""

    arrival_us: int
    wait_us: int


def gcra(rate: Rate, arrival_us: int, now_us: int, units: int = 1) -> RateDecision:
    """Decide on units; ``arrival_us`` is the theoretical arrival time kept from the last decision, 0 at first."""
    following = max(arrival_us, now_us) + rate.cost_us(units)
    wait_us = following - now_us - rate.tolerance_us
    return RateDecision(arrival_us, wait_us) if wait_us > 0 else RateDecision(following, 0)


class LocalLimiter:
    """The rate limit within this process, for the ``size`` tenants with the latest requests."""

    def __init__(self, rate: Rate, size: int = 10_000) -> None:
        self._rate = rate
        self._size = size
        self._arrivals: OrderedDict[str, int] = OrderedDict()

    def wait_us(self, tenant: str, now_us: int, units: int = 1) -> int:
        """Return 0 if so many units are allowed now, otherwise the microseconds until they are."""
        decision = gcra(self._rate, self._arrivals.pop(tenant, 0), now_us, units)
        self._arrivals[tenant] = decision.arrival_us
        if len(self._arrivals) > self._size:
            self._arrivals.popitem(last=False)
        return decision.wait_us

    def give_back(self, tenant: str, cost_us: int) -> None:
        """Undo a part of what the tenant was charged."""
        if tenant in self._arrivals:
            self._arrivals[tenant] -= cost_us


def tokens_of(request: Request) -> int:
    """Return the most tokens that a request is expected to use, of prompt and answer."""
    chars = sum(len(message.content) for message in request.messages)
    return -(-chars // CHARS_PER_TOKEN) + request.sampling.max_tokens


def used_tokens(session: DeliverySession, charged: int) -> int:
    """Return how many of the charged tokens an answer used: all, unless it is known that it used fewer."""
    if session.usage is not None:
        return min(charged, session.usage.prompt_tokens + session.usage.completion_tokens)
    return 0 if session.refused else charged
