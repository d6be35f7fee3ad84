"""What an operator sets."""

from dataclasses import dataclass, field
from typing import Any

from services.bus import BusSettings
from services.runtime.addresses import is_loopback
from services.runtime.errors import UserError


def _setting(default: Any, help_text: str, **metadata: Any) -> Any:
    return field(default=default, metadata={"help": help_text, **metadata})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Read with ``services.runtime.settings.load``.

    Attributes:
        edge_host: Address; any but a loopback one needs API keys.
        edge_port: Port; 0 takes a free one.
        edge_instance: Static membership in the group that deals out home partitions.
        api_keys_file: See ``services.edge.keys``; None lets everybody in, as tenant ``local``.
        redis_url: Where limits and idempotency keys are shared among edges; None keeps them in the process.
        allowed_origins: Web origins, separated by commas, whose pages may use this edge besides its own.
        client_buffer_bytes: A client with more unread bytes than this is dropped; it can resume.
        max_streams: Most streams open at once.
        max_socket_streams: Most requests on one websocket at once.
        rate_per_minute: Most requests of a tenant in a minute; 0 for no limit.
        rate_burst: Most of them at once.
        resume_ms: For how long after its total deadline an answer can be read again.
        edge_notice: A sentence at the top of the page, such as which of its parts are emulated.
        edge_drain_ms: How long open streams may go on when the process is told to stop.
    """

    edge_host: str = _setting("127.0.0.1", "address to listen on")
    edge_port: int = _setting(8080, "port to listen on, 0 = any free one", ge=0, le=65_535)
    edge_instance: str | None = _setting(None, "a name no other edge has: a restart then waits for no rebalance")
    api_keys_file: str | None = _setting(None, "TOML or JSON file of SHA-256 hashes and tenants; none = open")
    redis_url: str | None = _setting(None, "redis://HOST:PORT for limits shared among edges", secret=True)
    allowed_origins: str = _setting("", "further web origins, separated by commas")
    client_buffer_bytes: int = _setting(262_144, "most unread bytes of a client", ge=4_096, le=1_073_741_824)
    max_streams: int = _setting(1_024, "most streams open at once", ge=1, le=1_000_000)
    max_socket_streams: int = _setting(16, "most requests on one websocket at once", ge=1, le=10_000)
    rate_per_minute: int = _setting(0, "most requests of a tenant in a minute, 0 = no limit", ge=0, le=60_000_000)
    rate_burst: int = _setting(10, "most of them at once", ge=1, le=1_000_000)
    resume_ms: int = _setting(3_600_000, "how long an answer can be read again", ge=0, le=7 * 86_400_000)
    edge_notice: str = _setting("", "a sentence at the top of the page")
    edge_drain_ms: int = _setting(1_000, "how long streams may go on while stopping", ge=0, le=15_000)
    bus: BusSettings = field(default_factory=BusSettings)

    def __post_init__(self) -> None:
        """Refuses what cannot be meant.

        Raises:
            UserError: Naming the variables and the remedy.
        """
        if self.api_keys_file is None and not is_loopback(self.edge_host):
            raise UserError(
                f"RAILBUS_EDGE_HOST={self.edge_host} is no loopback address and there are no API keys: "
                "set RAILBUS_API_KEYS_FILE, or listen on 127.0.0.1"
            )

    @property
    def origins(self) -> frozenset[str]:
        """``allowed_origins``, taken apart."""
        return frozenset(origin.strip().rstrip("/") for origin in self.allowed_origins.split(",") if origin.strip())
