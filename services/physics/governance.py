"""What governance costs and what hides it. Times in milliseconds."""

from dataclasses import dataclass

from services.physics.checks import not_negative


@dataclass(frozen=True, slots=True, kw_only=True)
class GovernedStart:
    """The first token of a request whose input rails run beside queue and prefill.

    Attributes:
        hidden_ms: Rail time that nobody waited for.
        ttft_ms: Receipt to first visible token.
        serial_ms: The same had the rails run first.
    """

    hidden_ms: float
    ttft_ms: float
    serial_ms: float


def governed_start(*, rail_ms: float, queue_ms: float, prefill_ms: float, bus_ms: float = 0.0) -> GovernedStart:
    """Hidden = min(rail, queue + prefill); governed TTFT = max(queue + prefill, rail) + bus.

    Speculation shortens the time between tokens, never the time to the first: only overlap pays for a rail.
    """
    for name, value in (("rail_ms", rail_ms), ("queue_ms", queue_ms), ("prefill_ms", prefill_ms), ("bus_ms", bus_ms)):
        not_negative(name, value)
    engine = queue_ms + prefill_ms
    return GovernedStart(
        hidden_ms=min(rail_ms, engine), ttft_ms=max(engine, rail_ms) + bus_ms, serial_ms=rail_ms + engine + bus_ms
    )


def hidden_fraction(*, rail_ms: float, queue_ms: float, prefill_ms: float) -> float:
    """The share of the rails' time that queue and prefill hide; 1 when there are no rails."""
    start = governed_start(rail_ms=rail_ms, queue_ms=queue_ms, prefill_ms=prefill_ms)
    return 1.0 if rail_ms == 0 else start.hidden_ms / rail_ms


def exposure_tokens(*, tokens_per_second: float, check_ms: float, bus_ms: float, chunk_tokens: float = 1.0) -> float:
    """Tokens a user may have seen before a recall reaches them: rate x (check + bus) + the chunk it was found in."""
    for name, value in (
        ("tokens_per_second", tokens_per_second),
        ("check_ms", check_ms),
        ("bus_ms", bus_ms),
        ("chunk_tokens", chunk_tokens),
    ):
        not_negative(name, value)
    return tokens_per_second * (check_ms + bus_ms) / 1e3 + chunk_tokens
