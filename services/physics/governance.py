"""Compute the latency of input rails and of recalls. Times in milliseconds."""

from dataclasses import dataclass

from services.physics.checks import not_negative


@dataclass(frozen=True, slots=True, kw_only=True)
class GovernedStart:
    """The time to the first token of a request whose input rails run in parallel to queue and prefill.

    Attributes:
        hidden_ms: Rail time that does not delay the first token.
        ttft_ms: Time from receipt to the first visible token.
        serial_ms: The same time if the rails ran before queue and prefill.
    """

    hidden_ms: float
    ttft_ms: float
    serial_ms: float


def governed_start(*, rail_ms: float, queue_ms: float, prefill_ms: float, bus_ms: float = 0.0) -> GovernedStart:
    """Compute hidden = min(rail, queue + prefill) and governed TTFT = max(queue + prefill, rail) + bus.

    Rails are hidden only by overlap. Speculation does not shorten the time to the first token.
    """
    for name, value in (("rail_ms", rail_ms), ("queue_ms", queue_ms), ("prefill_ms", prefill_ms), ("bus_ms", bus_ms)):
        not_negative(name, value)
    engine = queue_ms + prefill_ms
    return GovernedStart(
        hidden_ms=min(rail_ms, engine), ttft_ms=max(engine, rail_ms) + bus_ms, serial_ms=rail_ms + engine + bus_ms
    )


def hidden_fraction(*, rail_ms: float, queue_ms: float, prefill_ms: float) -> float:
    """Return the share of the rails' time that queue and prefill hide; 1 without rails."""
    start = governed_start(rail_ms=rail_ms, queue_ms=queue_ms, prefill_ms=prefill_ms)
    return 1.0 if rail_ms == 0 else start.hidden_ms / rail_ms


def exposure_tokens(*, tokens_per_second: float, check_ms: float, bus_ms: float, chunk_tokens: float = 1.0) -> float:
    """Return the tokens shown until a recall arrives: rate x (check + bus) + the chunk that caused the recall."""
    for name, value in (
        ("tokens_per_second", tokens_per_second),
        ("check_ms", check_ms),
        ("bus_ms", bus_ms),
        ("chunk_tokens", chunk_tokens),
    ):
        not_negative(name, value)
    return tokens_per_second * (check_ms + bus_ms) / 1e3 + chunk_tokens
