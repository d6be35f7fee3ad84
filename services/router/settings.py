"""The router's settings."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from services.bus import BusSettings
from services.router.config import FallbackLimits, Prices, RouterConfig
from services.runtime.classes.policy_deadlines import DAY_MS, DEFAULT_POLICY, Bounds
from services.runtime.classes.service_classes import ServiceClasses, read_service_classes
from services.runtime.errors import UserError
from services.runtime.health import HealthSettings
from services.runtime.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The router: deadlines, fallback to the cloud and its budget.

    Attributes:
        input_gate: ``hold`` means that a request is closed if a rails service gives no verdict in time. Set ``off``
            only where no rails service runs, and set it for the edges and the workers too.
        output_check: ``on`` means that an answer is complete only when a safety service has cleared it. Set ``off``
            only where no safety service runs, and set it for the edges and the workers too.
        client_grace_ms: A request is closed when its last client has been disconnected for longer than this.
        policy: Folder of the policy, which sets the classes of requests and the bounds of deadlines. It is read again
            after each change.
        total_max_ms: Longest total deadline of an interactive request. If it is not set, the policy's longest total
            deadline applies. When a router starts, it reads the log of at least the last 2 x ``total_max_ms``.
        router_max_open: Maximum number of open interactive requests in one partition. Further requests are closed as
            ``failed``.
        router_max_batch_open: Maximum number of open batch requests in one partition. Further requests are closed as
            ``failed``. Each open request takes about 5 KB of the router's memory.
        router_instance: Unique id for static group membership. A restart within the session timeout then causes no
            rebalance.
        fallback: Where a request goes if the self-hosted engines cannot serve it in time: nowhere, or to Vertex AI.
        fallback_attempts: Maximum number of attempts of one request in the cloud.
        fallback_ratio: Maximum share of a minute's requests that may go to the cloud.
        fallback_free: Number of requests that may go to the cloud each minute even if ``fallback_ratio`` is reached.
        fallback_usd_per_hour: Maximum cost of fallbacks in an hour, in US dollars. A sixtieth of it may be spent in
            each minute. 0 means no limit.
        retries: Maximum number of retries of one interactive request.
        batch_retries: Maximum number of retries of one batch request.
        retry_ratio: Maximum ratio of retries to requests, within a minute. Only interactive requests count.
        retry_free: Number of retries of interactive requests that are allowed each minute even if ``retry_ratio`` is
            reached.
        breaker_trip: If this many of the last ten requests were late or failed, new requests go straight to the cloud.
            0 turns this off.
        fallback_spent: What happens to a late or stalled request if the budget for its next attempt is spent. With
            ``wait``, the request waits for the engine. With ``close``, it is closed.
        ttft_min_ms: Shortest first-token deadline of an interactive request. A shorter deadline is raised to this.
        ttft_max_ms: Longest first-token deadline of an interactive request. A longer deadline is shortened to this.
        ttft_ms_per_1000_chars: Milliseconds added to the first-token deadline for each 1,000 characters of prompt.
        stall_min_ms: Shortest stall deadline of an interactive request. A shorter deadline is raised to this.
        stall_max_ms: Longest stall deadline of an interactive request. A longer deadline is shortened to this.
        vertex_usd_per_m_input: Price of a million prompt tokens, in US dollars.
        vertex_usd_per_m_output: Price of a million answer tokens, in US dollars.
    """

    input_gate: Literal["hold", "off"] = setting(
        "hold", "hold = a request without a verdict in time is closed, off = no rails service runs"
    )
    output_check: Literal["on", "off"] = setting("on", "whether a safety service checks answers")
    client_grace_ms: int = setting(
        5_000, "how long a request stays open after its last client has disconnected", ge=0, le=3_600_000
    )
    policy: Path = field(default=DEFAULT_POLICY, metadata={"help": "folder of the policy"})
    total_max_ms: int | None = setting(
        None, "longest total deadline of an interactive request; if not set, the policy's", ge=1_000, le=DAY_MS
    )
    router_max_open: int = setting(
        25_000, "maximum number of open interactive requests in one partition", ge=1, le=10_000_000
    )
    router_max_batch_open: int = setting(
        100_000, "maximum number of open batch requests in one partition", ge=1, le=10_000_000
    )
    router_instance: str | None = setting(
        None, "unique name of this router, so that a quick restart causes no rebalance"
    )
    fallback: Literal["off", "vertex"] = setting(
        "off", "where a request goes if the self-hosted engines cannot serve it in time"
    )
    fallback_attempts: int = setting(1, "maximum number of attempts of one request in the cloud", ge=1, le=10)
    fallback_ratio: float = setting(0.25, "maximum ratio of fallbacks to requests, within a minute", ge=0, le=1)
    fallback_free: int = setting(
        20, "number of fallbacks allowed per minute even if RAILBUS_FALLBACK_RATIO allows fewer", ge=0, le=1_000_000
    )
    fallback_usd_per_hour: float = setting(
        0.0, "maximum cost of fallbacks in US dollars per hour, 0 = no limit", ge=0, le=1e9
    )
    retries: int = setting(
        2, "maximum number of retries of one interactive request on the self-hosted engines", ge=0, le=10
    )
    batch_retries: int = setting(5, "maximum number of retries of one batch request", ge=0, le=100)
    retry_ratio: float = setting(1.0, "maximum ratio of retries to interactive requests, within a minute", ge=0, le=10)
    retry_free: int = setting(
        100,
        "number of retries of interactive requests allowed per minute even if RAILBUS_RETRY_RATIO allows fewer",
        ge=0,
        le=1_000_000,
    )
    breaker_trip: int = setting(
        5,
        "number of late or failed requests among the last ten at which new ones go to the cloud, 0 = off",
        ge=0,
        le=10,
    )
    fallback_spent: Literal["wait", "close"] = setting(
        "wait", "what happens to a late or stalled request if the budget for its next attempt is spent"
    )
    ttft_min_ms: int = setting(1, "minimum first-token deadline of an interactive request", ge=1, le=DAY_MS)
    ttft_max_ms: int = setting(600_000, "maximum first-token deadline of an interactive request", ge=1, le=DAY_MS)
    ttft_ms_per_1000_chars: float = setting(
        0.0, "time added to the first-token deadline for each 1,000 characters of prompt", ge=0, le=60_000
    )
    stall_min_ms: int = setting(1, "minimum stall deadline of an interactive request", ge=1, le=DAY_MS)
    stall_max_ms: int = setting(600_000, "maximum stall deadline of an interactive request", ge=1, le=DAY_MS)
    vertex_usd_per_m_input: float = setting(
        0.30, "price of a million prompt tokens on Vertex AI, in US dollars", ge=0, le=1e6
    )
    vertex_usd_per_m_output: float = setting(
        2.50, "price of a million answer tokens on Vertex AI, in US dollars", ge=0, le=1e6
    )
    bus: BusSettings = field(default_factory=BusSettings)
    health: HealthSettings = field(default_factory=HealthSettings)

    def __post_init__(self) -> None:
        for name, least_ms, most_ms in (
            ("TTFT", self.ttft_min_ms, self.ttft_max_ms), ("STALL", self.stall_min_ms, self.stall_max_ms),
        ):  # fmt: skip
            if least_ms > most_ms:
                raise UserError(
                    f"RAILBUS_{name}_MIN_MS={least_ms} is above RAILBUS_{name}_MAX_MS={most_ms}: lower the first"
                )

    def config(self, classes: ServiceClasses | None = None) -> RouterConfig:
        """Return the configuration for ``RouterCore``.

        Args:
            classes: The policy's classes; None to read them from the policy.

        Raises:
            UserError: The policy cannot be read, or a setting contradicts it.
        """
        classes = read_service_classes(self.policy) if classes is None else classes
        longest_ms = classes.longest_total_ms("interactive")
        total_max_ms = longest_ms if self.total_max_ms is None else self.total_max_ms
        if total_max_ms > longest_ms:
            raise UserError(
                f"RAILBUS_TOTAL_MAX_MS={total_max_ms} is above the policy's longest total_ms, {longest_ms}: "
                "lower it, or raise [deadlines] of the policy for all services"
            )
        usd = self.fallback_usd_per_hour / 60
        return RouterConfig(
            input_gate=self.input_gate,
            output_check=self.output_check,
            client_grace_ms=self.client_grace_ms,
            classes=classes,
            total_max_ms=total_max_ms,
            max_open=self.router_max_open,
            max_batch_open=self.router_max_batch_open,
            fallback=self.fallback,
            max_fallbacks=self.fallback_attempts,
            ttft_bounds_ms=_within("TTFT", self.ttft_min_ms, self.ttft_max_ms, classes),
            ttft_ms_per_1000_chars=self.ttft_ms_per_1000_chars,
            stall_bounds_ms=_within("STALL", self.stall_min_ms, self.stall_max_ms, classes),
            breaker_trip=self.breaker_trip,
            limits=FallbackLimits(ratio=self.fallback_ratio, free=self.fallback_free, usd=usd or None),
            max_retries=self.retries,
            max_batch_retries=self.batch_retries,
            retry_limits=FallbackLimits(ratio=self.retry_ratio, free=self.retry_free),
            when_spent=self.fallback_spent,
            prices=Prices(input=self.vertex_usd_per_m_input, output=self.vertex_usd_per_m_output),
        )


def _within(name: str, least_ms: int, most_ms: int, classes: ServiceClasses) -> Bounds:
    ranges = [each.bounds.of(f"{name.lower()}_ms") for each in classes if each.lane == "interactive"]
    # The policy's range spans all classes of interactive requests.
    bounds = min(least for least, _ in ranges), max(largest for _, largest in ranges)
    if least_ms > bounds[1] or most_ms < bounds[0]:
        raise UserError(
            f"RAILBUS_{name}_MIN_MS={least_ms} and RAILBUS_{name}_MAX_MS={most_ms} contradict the policy, which allows "
            f"{bounds[0]} to {bounds[1]}: change them, or [deadlines] of the policy for all services"
        )
    return max(least_ms, bounds[0]), min(most_ms, bounds[1])
