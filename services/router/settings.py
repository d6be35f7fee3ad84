"""What an operator sets."""

from dataclasses import dataclass, field
from typing import Any, Literal

from services.bus import BusSettings
from services.router.budget import Limits
from services.router.policy import Policy, Prices, Range
from services.runtime.health import HealthSettings

_DAY_MS = 86_400_000


def _setting(default: Any, help_text: str, **metadata: Any) -> Any:
    return field(default=default, metadata={"help": help_text, **metadata})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Read with ``services.runtime.settings.load``. What each means stands in ``services.router.policy``.

    Attributes:
        router_instance: Static membership: a restart within the session timeout waits for no rebalance.
        total_max_ms: The router folds twice this much of the log when it starts.
        fallback_usd_per_hour: Kept minute by minute: a sixtieth of it each; 0 for no limit.
    """

    input_gate: Literal["hold", "off"] = _setting("off", "hold: every answer waits for the rails' verdict")
    client_grace_ms: int = _setting(5_000, "how long a client may be gone", ge=0, le=3_600_000)
    total_max_ms: int = _setting(300_000, "longest total deadline of a request", ge=1_000, le=_DAY_MS)
    router_max_open: int = _setting(25_000, "most requests open at once in one partition", ge=1, le=10_000_000)
    router_instance: str | None = _setting(None, "a name no other router has: a restart then waits for no rebalance")
    fallback: Literal["off", "vertex"] = _setting("off", "where late and failed requests go")
    fallback_attempts: int = _setting(1, "most attempts of one request in the cloud", ge=1, le=10)
    fallback_ratio: float = _setting(0.25, "fallbacks per request, within a minute", ge=0, le=1)
    fallback_free: int = _setting(20, "fallbacks a minute allowed however few requests there are", ge=0, le=1_000_000)
    fallback_usd_per_hour: float = _setting(0.0, "what fallbacks may cost, 0 = no limit", ge=0, le=1e9)
    breaker_trip: int = _setting(5, "late ones of ten requests that send new ones straight there, 0 = off", ge=0, le=10)
    fallback_spent: Literal["wait", "close"] = _setting("wait", "what late requests do when the budget is spent")
    ttft_min_ms: int = _setting(1, "shortest first-token deadline a request may ask for", ge=1, le=_DAY_MS)
    ttft_max_ms: int = _setting(600_000, "longest first-token deadline a request may ask for", ge=1, le=_DAY_MS)
    ttft_ms_per_1000_chars: float = _setting(0.0, "added to it for each 1,000 characters of prompt", ge=0, le=60_000)
    stall_min_ms: int = _setting(1, "shortest stall deadline a request may ask for", ge=1, le=_DAY_MS)
    stall_max_ms: int = _setting(600_000, "longest stall deadline a request may ask for", ge=1, le=_DAY_MS)
    vertex_usd_per_m_input: float = _setting(0.30, "price of a million prompt tokens", ge=0, le=1e6)
    vertex_usd_per_m_output: float = _setting(2.50, "price of a million answer tokens", ge=0, le=1e6)
    bus: BusSettings = field(default_factory=BusSettings)
    health: HealthSettings = field(default_factory=HealthSettings)

    def policy(self) -> Policy:
        """As the pure core wants it."""
        usd = self.fallback_usd_per_hour / 60
        return Policy(
            input_gate=self.input_gate,
            client_grace_ms=self.client_grace_ms,
            total_max_ms=self.total_max_ms,
            max_open=self.router_max_open,
            fallback=self.fallback,
            max_fallbacks=self.fallback_attempts,
            ttft=Range(least_ms=self.ttft_min_ms, most_ms=self.ttft_max_ms),
            ttft_ms_per_1000_chars=self.ttft_ms_per_1000_chars,
            stall=Range(least_ms=self.stall_min_ms, most_ms=self.stall_max_ms),
            breaker_trip=self.breaker_trip,
            limits=Limits(ratio=self.fallback_ratio, free=self.fallback_free, usd=usd or None),
            when_spent=self.fallback_spent,
            prices=Prices(input=self.vertex_usd_per_m_input, output=self.vertex_usd_per_m_output),
        )
