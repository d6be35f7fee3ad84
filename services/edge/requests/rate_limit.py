"""Rate limits per tenant, by the generic cell rate algorithm (GCRA)."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from schemas.requests import Request
from services.edge.delivery.session import DeliverySession

CHARS_PER_TOKEN: Final = 4
"""Estimated characters per token, which is common for English. The edge does not know the model's tokenizer."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A limit: ``per_minute`` units on average, ``burst`` units at one moment. A unit is a request or a token."""

    per_minute: int
    burst: int

    def cost_us(self, units: int = 1) -> int:
        """Return how many microseconds ``units`` units take at the average rate.

        If ``units`` is greater than ``burst``, only ``burst`` units are counted.
        """
        return min(units, self.burst) * 60_000_000 // self.per_minute

    @property
    def tolerance_us(self) -> int:
        return self.cost_us(self.burst)


@dataclass(frozen=True, slots=True)
class RateDecision:
    """The result of ``gcra``.

    Attributes:
        arrival_us: GCRA's theoretical arrival time, in microseconds. Pass it to the next call of ``gcra``.
        wait_us: Microseconds until the requested units are allowed; 0 if they are allowed now.
    """

    arrival_us: int
    wait_us: int


def gcra(rate: Rate, arrival_us: int, now_us: int, units: int = 1) -> RateDecision:
    """Decide whether ``units`` (requests or tokens) are allowed at ``now_us``.

    ``arrival_us`` is the field ``arrival_us`` of the previous decision; 0 if there was no previous decision.
    """
    following = max(arrival_us, now_us) + rate.cost_us(units)
    wait_us = following - now_us - rate.tolerance_us
    return RateDecision(arrival_us, wait_us) if wait_us > 0 else RateDecision(following, 0)


class LocalLimiter:
    """A rate limit within this process. It applies to each tenant separately.

    The object remembers the tenants that used it last, at most ``size`` of them. It treats any other tenant as new.
    """

    def __init__(self, rate: Rate, size: int = 10_000) -> None:
        self._rate = rate
        self._size = size
        self._arrivals: OrderedDict[str, int] = OrderedDict()

    def wait_us(self, tenant: str, now_us: int, units: int = 1) -> int:
        """Charge the tenant for ``units`` requests or tokens, and return 0.

        If the limit does not allow them now, charge nothing and return how many microseconds to wait.
        """
        decision = gcra(self._rate, self._arrivals.pop(tenant, 0), now_us, units)
        self._arrivals[tenant] = decision.arrival_us
        if len(self._arrivals) > self._size:
            self._arrivals.popitem(last=False)
        return decision.wait_us

    def give_back(self, tenant: str, cost_us: int) -> None:
        """Undo a charge or a part of it. ``cost_us`` is ``Rate.cost_us`` of the units to undo."""
        if tenant in self._arrivals:
            self._arrivals[tenant] -= cost_us


def tokens_of(request: Request) -> int:
    """Return the estimated tokens of the prompt plus ``max_tokens``."""
    chars = sum(len(message.content) for message in request.messages)
    return -(-chars // CHARS_PER_TOKEN) + request.sampling.max_tokens


def used_tokens(session: DeliverySession, charged: int) -> int:
    """Return how many of the charged tokens were used; all of them if this is not known."""
    if session.usage is not None:
        return min(charged, session.usage.prompt_tokens + session.usage.completion_tokens)
    return 0 if session.refused else charged
