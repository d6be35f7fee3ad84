"""What an operator sets."""

from dataclasses import dataclass, field

from schemas.stream import Gate
from services.bus import BusSettings
from services.router.policy import Policy
from services.runtime.health import HealthSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Read with ``services.runtime.settings.load``.

    Attributes:
        input_gate: What holds of requests whose ``Started`` was not read yet.
        client_grace_ms: A client that was attached and is gone for longer ends its request.
        total_max_ms: Longest total deadline of any request. The router folds twice this much of the log when it starts.
        router_instance: Static membership: a restart within the session timeout waits for no rebalance.
        router_max_open: Most requests open at once in one partition.
        bus: The broker.
        health: The health server.
    """

    input_gate: Gate = field(default="off", metadata={"help": "hold: every answer waits for the rails' verdict"})
    client_grace_ms: int = field(
        default=5_000,
        metadata={"help": "how long a client may be gone before its request ends", "ge": 0, "le": 3_600_000},
    )
    total_max_ms: int = field(
        default=600_000, metadata={"help": "longest total deadline of a request", "ge": 1_000, "le": 86_400_000}
    )
    router_instance: str | None = field(
        default=None,
        metadata={"help": "a name no other router has: a restart then takes up its partitions at once"},
    )
    router_max_open: int = field(
        default=25_000, metadata={"help": "most requests open at once in one partition", "ge": 1, "le": 10_000_000}
    )
    bus: BusSettings = field(default_factory=BusSettings)
    health: HealthSettings = field(default_factory=HealthSettings)

    def policy(self) -> Policy:
        """As the pure core wants it."""
        return Policy(
            input_gate=self.input_gate,
            client_grace_ms=self.client_grace_ms,
            total_max_ms=self.total_max_ms,
            max_open=self.router_max_open,
        )
