"""Compute which prompt lengths and loads meet a deadline for the first token."""

from decimal import Decimal, localcontext
from math import sqrt

from services.physics.catalogue.gpus import Gpu
from services.physics.catalogue.models import Model
from services.physics.catalogue.precisions import Precision
from services.physics.checks import MOST, fraction, not_negative, positive
from services.physics.efficiency import Efficiency, practical
from services.physics.roofline import prefill_ms

_MAX_SERVICES = 200
"""Longest wait that is computed, in service times. The exact sum needs more digits for longer waits."""


def longest_prompt(
    model: Model, gpu: Gpu, precision: Precision, budget_ms: float, *, efficiency: Efficiency | None = None
) -> int:
    """Return the maximum number of uncached prompt tokens that an idle accelerator prefills within ``budget_ms``.

    The result is at most ``MOST``. If ``efficiency`` is None, ``practical(gpu)`` applies.
    """
    not_negative("budget_ms", budget_ms)
    efficiency = practical(gpu) if efficiency is None else efficiency
    low, high = 0, MOST
    if prefill_ms(model, gpu, precision, high, efficiency=efficiency) <= budget_ms:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        fits = prefill_ms(model, gpu, precision, middle, efficiency=efficiency) <= budget_ms
        low, high = (middle, high) if fits else (low, middle)
    return low


def chance_of_waiting_at_most(wait_ms: float, service_ms: float, utilisation: float) -> float:
    """Return the probability of a wait of at most ``wait_ms`` in an M/D/1 queue.

    M/D/1 means Poisson arrivals, one server, and the constant service time ``service_ms``.
    """
    positive("service_ms", service_ms)
    if wait_ms < 0:
        return 0.0
    if not 0 <= utilisation < 1:
        raise ValueError(f"utilisation must be at least 0 and below 1, not {utilisation!r}")
    services = wait_ms / service_ms
    if services > _MAX_SERVICES:
        return 1.0
    # With t in service times: (1 - rho) sum over k = 0 .. floor(t) of (rho (k - t))^k / k! exp(-rho (k - t)) (Erlang
    # 1909, Crommelin 1932). The terms alternate in sign and cancel, so they are computed with extra digits.
    with localcontext() as digits:
        digits.prec = 40 + 2 * int(services)
        rho, t, total, factorial = Decimal(utilisation), Decimal(services), Decimal(0), Decimal(1)
        for k in range(int(services) + 1):
            factorial *= max(1, k)
            x = rho * (k - t)
            total += (x**k if k else Decimal(1)) / factorial * (-x).exp()
        return min(1.0, float((1 - rho) * total))


def mean_wait_ms(service_ms: float, utilisation: float) -> float:
    positive("service_ms", service_ms)
    if not 0 <= utilisation < 1:
        raise ValueError(f"utilisation must be at least 0 and below 1, not {utilisation!r}")
    # Pollaczek 1930, Khinchine 1932.
    return utilisation * service_ms / (2 * (1 - utilisation))


def response_variation(utilisation: float) -> float:
    """Return the coefficient of variation of the response time (wait plus service) in an M/D/1 queue.

    The formula is from Kleinrock, "Queueing Systems", 1975, section 5.7.
    """
    wait = mean_wait_ms(1.0, utilisation)
    return sqrt(wait * wait + utilisation / (3 * (1 - utilisation))) / (1 + wait)


def highest_utilisation(deadline_ms: float, service_ms: float, *, share: float = 0.99) -> float:
    """Return the highest utilisation at which ``share`` of the requests get their first token within ``deadline_ms``.

    The result is between 0 and 1. It is 0 if ``service_ms``, the prefill time of a request, is longer than
    ``deadline_ms``.
    """
    fraction("share", share)
    positive("service_ms", service_ms)
    if deadline_ms < service_ms:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        in_time = chance_of_waiting_at_most(deadline_ms - service_ms, service_ms, middle) >= share
        low, high = (middle, high) if in_time else (low, middle)
    return low
