"""The edge's settings."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from services.bus import BusSettings
from services.edge.http.access.proxies import TrustedProxies, trusted_proxies
from services.edge.requests.rate_limit import Rate
from services.edge.requests.shared_limits import Quota
from services.runtime.errors import UserError
from services.runtime.policy_deadlines import DEFAULT_POLICY
from services.runtime.settings import is_loopback, setting
from services.stream import Governance


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The edge: where it listens, whom it lets in, and what a client may use.

    Attributes:
        edge_host: Address to listen on. Any but a loopback address needs API keys.
        edge_port: Port to listen on. 0 takes a free one.
        edge_tls_cert: PEM file of a certificate: the edge then speaks HTTPS only. Not set: HTTP, for loopback or behind
            a proxy that ends TLS.
        edge_tls_key: PEM file of the certificate's key, without a password. Not set: it is in the same file.
        edge_instance: A name that no other edge has. A restart under the same name within the session timeout causes no
            rebalance.
        api_keys_file: TOML or JSON file with a table ``keys``: SHA-256 of a key, in hex, to the tenant's name. Not set:
            no key is needed, and every request belongs to the tenant ``local``.
        metrics_tenants: Tenants whose keys may read ``/metrics``, separated by commas. Not set: every key may. The
            metrics are sums over all tenants. At ``/ledger`` these tenants see every tenant's sums, others only their
            own.
        input_gate: ``hold``: no text is shown before the verdict of a rails service, whatever a worker says. ``off``
            only where none runs, and for the router and the workers too.
        output_check: ``on``: text beyond the exposure limit waits for a safety service, whatever a worker says. ``off``
            only where none runs, and for the router and the workers too.
        policy: Folder of the policy. The edge reads its ``[deadlines]`` and ``[classes]``, again after each change: a
            request that asks for other deadlines is refused.
        redis_url: ``redis://HOST:PORT`` for rate limits and idempotency keys, so that several edges share them. Not
            set: each edge keeps its own.
        allowed_origins: Web origins whose pages may use this edge besides its own page, separated by commas.
        client_buffer_bytes: A client for which more bytes than this are waiting is disconnected. It can resume the
            stream.
        max_streams: Most streams open at once.
        max_tenant_streams: Most streams of one tenant open at once, on this edge. 0 means no limit of its own.
        max_socket_streams: Most requests at once on one websocket.
        max_connections: Most connections open at once, whatever they do. A new one beyond the limit replaces the one
            that has been waiting longest for its client; if none waits, it gets 503, and only health checks work.
        max_address_connections: The same for one client address, or for one IPv6 network of 64 bits: 429.
        body_memory_mb: Most MiB that the bodies and messages have which clients are sending or which are not on the log
            yet. Beyond it, those that began first and are not whole are dropped with 503; the process may need twice as
            much for them.
        trusted_proxies: Addresses or networks of the proxies before this edge, separated by commas. For their
            connections, the limit per address counts the address of the client that a request names in the header
            ``proxy_header``. Not set: all clients of a proxy have its address.
        proxy_header: The header to which the proxies append the address of their client.
        request_timeout_ms: How long a client may take to send the head of its first request, and to send each body.
        hello_timeout_ms: How long a client may take to send the first valid message on a websocket: ``hello`` with its
            key where keys are needed and the handshake had none.
        idle_timeout_ms: How long a connection may stay open between two requests.
        rate_per_minute: Most requests of a tenant in a minute. 0 means no limit.
        rate_burst: Most requests of a tenant at once, within the limit of the minute.
        tokens_per_minute: Most tokens of a tenant in a minute, of prompts and answers. A request is charged its
            ``max_tokens``, and a token for each 4 characters of its prompt; when the answer is complete, what it did
            not use is given back. 0 means no limit.
        tokens_burst: Most tokens at once, within the limit of the minute. A request that may need more passes alone.
        resumes_per_minute: How often a tenant may resume a stream or read an answer again in a minute. 0 means no
            limit.
        resume_burst: How often at once, within the limit of the minute: when an edge ends, all its clients come.
        resume_ms: For how long after its total deadline an answer can be read again.
        batch_dir: Folder of the files of batch jobs, shared with the batch service. Not set: ``/v1/files`` and
            ``/v1/batches`` are off.
        batch_file_mb: Largest file that may be uploaded, in MiB.
        batch_tenant_files: Most files of a tenant, those that its jobs wrote included.
        batch_tenant_jobs: Most jobs of a tenant that have not ended.
        edge_notice: A sentence at the top of the page, for example that a part of the installation is emulated.
        operator_page: Whether the page keeps text that was taken back, struck through, for an operator who looks at a
            policy. People who are given answers must not be able to read it.
        edge_drain_ms: How long open streams may continue when the process is told to stop.
    """

    edge_host: str = setting("127.0.0.1", "address to listen on")
    edge_port: int = setting(8080, "port to listen on, 0 = any free one", ge=0, le=65_535)
    edge_tls_cert: Path | None = field(default=None, metadata={"help": "PEM file of the certificate for HTTPS"})
    edge_tls_key: Path | None = field(default=None, metadata={"help": "PEM file of the certificate's key"})
    edge_instance: str | None = setting(None, "unique name of this edge: a restart then causes no rebalance")
    api_keys_file: str | None = setting(None, "TOML or JSON file of SHA-256 hashes and tenants; none = no key needed")
    metrics_tenants: str = setting("", "tenants that may read /metrics, separated by commas")
    input_gate: Literal["hold", "off"] = setting("hold", "whether text waits for a verdict")
    output_check: Literal["on", "off"] = setting("on", "whether a safety service checks")
    policy: Path = field(default=DEFAULT_POLICY, metadata={"help": "folder of the policy"})
    redis_url: str | None = setting(None, "redis://HOST:PORT for limits shared among edges", secret=True)
    allowed_origins: str = setting("", "further web origins, separated by commas")
    client_buffer_bytes: int = setting(262_144, "most unread bytes of a client", ge=4_096, le=1_073_741_824)
    max_streams: int = setting(1_024, "most streams open at once", ge=1, le=1_000_000)
    max_tenant_streams: int = setting(
        0, "most streams of a tenant open at once, 0 = no limit of its own", ge=0, le=1_000_000
    )
    max_socket_streams: int = setting(16, "most requests on one websocket at once", ge=1, le=10_000)
    max_connections: int = setting(4_096, "most connections open at once", ge=1, le=1_000_000)
    max_address_connections: int = setting(1_024, "most connections of one client address at once", ge=1, le=1_000_000)
    body_memory_mb: int = setting(
        12, "most MiB of bodies and messages on their way from clients to the log", ge=8, le=1_000_000
    )
    trusted_proxies: str = setting("", "addresses or networks of proxies, separated by commas")
    proxy_header: Literal["X-Forwarded-For", "Forwarded"] = setting(
        "X-Forwarded-For", "where proxies name their client"
    )
    request_timeout_ms: int = setting(
        30_000, "how long a client may take to send a request's head or body", ge=100, le=3_600_000
    )
    hello_timeout_ms: int = setting(
        10_000, "how long a client may take to send the first message on a websocket", ge=100, le=3_600_000
    )
    idle_timeout_ms: int = setting(
        75_000, "how long a connection may stay open between two requests", ge=100, le=3_600_000
    )
    rate_per_minute: int = setting(0, "most requests of a tenant in a minute, 0 = no limit", ge=0, le=60_000_000)
    rate_burst: int = setting(10, "most requests of a tenant at once", ge=1, le=1_000_000)
    tokens_per_minute: int = setting(0, "most tokens of a tenant in a minute, 0 = no limit", ge=0, le=1_000_000_000)
    tokens_burst: int = setting(100_000, "most tokens of a tenant at once", ge=1, le=1_000_000_000)
    resumes_per_minute: int = setting(
        0, "how often a tenant may resume a stream in a minute, 0 = no limit", ge=0, le=60_000_000
    )
    resume_burst: int = setting(100, "how often a tenant may resume a stream at once", ge=1, le=1_000_000)
    resume_ms: int = setting(
        3_600_000, "how long after its deadline an answer can be read again", ge=0, le=7 * 86_400_000
    )
    batch_dir: Path | None = field(
        default=None, metadata={"help": "folder of the files of batch jobs, shared with the edge"}
    )
    batch_file_mb: int = setting(200, "largest file that may be uploaded, in MiB", ge=1, le=100_000)
    batch_tenant_files: int = setting(1_000, "most files of a tenant", ge=1, le=1_000_000)
    batch_tenant_jobs: int = setting(16, "most jobs of a tenant that have not ended", ge=1, le=10_000)
    edge_notice: str = setting("", "a sentence at the top of the page")
    operator_page: bool = setting(
        default=False, help_text="whether the page keeps text that was taken back, struck through"
    )
    edge_drain_ms: int = setting(1_000, "how long open streams may continue when the process stops", ge=0, le=15_000)
    bus: BusSettings = field(default_factory=BusSettings)

    def __post_init__(self) -> None:
        """Refuse malformed and contradictory settings.

        Raises:
            UserError: They contradict each other, or one is malformed.
        """
        trusted_proxies(self.trusted_proxies, self.proxy_header)
        if self.api_keys_file is None and not is_loopback(self.edge_host):
            raise UserError(
                f"RAILBUS_EDGE_HOST={self.edge_host} is not a loopback address, and there are no API keys: "
                "set RAILBUS_API_KEYS_FILE, or listen on 127.0.0.1"
            )

    @property
    def governance(self) -> Governance:
        """Return which checks are required before text is shown."""
        return Governance(input_gate=self.input_gate, output_check=self.output_check)

    @property
    def rates(self) -> dict[Quota, Rate]:
        """The limits per tenant and minute that are set."""
        limits: dict[Quota, tuple[int, int]] = {
            "requests": (self.rate_per_minute, self.rate_burst),
            "tokens": (self.tokens_per_minute, self.tokens_burst),
            "resumes": (self.resumes_per_minute, self.resume_burst),
        }
        return {quota: Rate(per_minute, burst) for quota, (per_minute, burst) in limits.items() if per_minute}

    @property
    def proxies(self) -> TrustedProxies:
        """The proxies before this edge."""
        return trusted_proxies(self.trusted_proxies, self.proxy_header)

    @property
    def metrics_readers(self) -> frozenset[str]:
        """The set of ``metrics_tenants``; empty for all."""
        return frozenset(name.strip() for name in self.metrics_tenants.split(",") if name.strip())

    @property
    def origins(self) -> frozenset[str]:
        """The set of ``allowed_origins``."""
        return frozenset(origin.strip().rstrip("/") for origin in self.allowed_origins.split(",") if origin.strip())
