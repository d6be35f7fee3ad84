"""Compute the delay that input rails cause, and the amount of text that users see before a recall.

Input rails are checks of the prompt. A recall takes back text that users have already seen.
"""

from dataclasses import dataclass

from services.physics.checks import not_negative


@dataclass(frozen=True, slots=True, kw_only=True)
class GovernedStart:
    """The time to first token if the input rails (checks of the prompt) run during the queue and the prefill.

    Attributes:
        hidden_ms: Part of the rails' time that does not delay the first token.
        ttft_ms: Time from receipt of the request to the first visible token.
        serial_ms: The value of ``ttft_ms`` if the rails ran before queue and prefill.
    """

    hidden_ms: float
    ttft_ms: float
    serial_ms: float


def governed_start(*, rail_ms: float, queue_ms: float, prefill_ms: float, bus_ms: float = 0.0) -> GovernedStart:
    """Compute the time to first token if the input rails run while the request waits in the queue and is prefilled.

    In the result, ``ttft_ms`` is max(``queue_ms`` + ``prefill_ms``, ``rail_ms``) + ``bus_ms``. ``bus_ms`` is the time
    of the transport over Kafka.
    """
    for name, value in (("rail_ms", rail_ms), ("queue_ms", queue_ms), ("prefill_ms", prefill_ms), ("bus_ms", bus_ms)):
        not_negative(name, value)
    engine = queue_ms + prefill_ms
    return GovernedStart(
        hidden_ms=min(rail_ms, engine), ttft_ms=max(engine, rail_ms) + bus_ms, serial_ms=rail_ms + engine + bus_ms
    )


def hidden_fraction(*, rail_ms: float, queue_ms: float, prefill_ms: float) -> float:
    """Return the share of ``rail_ms`` that does not delay the first token; 1 if ``rail_ms`` is 0."""
    start = governed_start(rail_ms=rail_ms, queue_ms=queue_ms, prefill_ms=prefill_ms)
    return 1.0 if rail_ms == 0 else start.hidden_ms / rail_ms


def exposure_tokens(*, tokens_per_second: float, check_ms: float, bus_ms: float, chunk_tokens: float = 1.0) -> float:
    """Return the number of tokens that users see before a recall takes them back.

    The answer goes on while it is checked. ``check_ms`` is the time of the check. ``bus_ms`` is the time of the
    transport over Kafka.
    """
    for name, value in (
        ("tokens_per_second", tokens_per_second),
        ("check_ms", check_ms),
        ("bus_ms", bus_ms),
        ("chunk_tokens", chunk_tokens),
    ):
        not_negative(name, value)
    return tokens_per_second * (check_ms + bus_ms) / 1e3 + chunk_tokens
