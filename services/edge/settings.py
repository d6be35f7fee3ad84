"""The settings of the edge."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from services.bus import BusSettings
from services.edge.http.access.proxies import TrustedProxies, trusted_proxies
from services.edge.requests.rate_limit import Rate
from services.edge.requests.shared_limits import Quota
from services.runtime.classes.policy_deadlines import DEFAULT_POLICY
from services.runtime.errors import UserError
from services.runtime.settings import is_loopback, setting
from services.stream import Governance


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The address of the edge, the access to it, and the limits for its clients.

    Attributes:
        edge_host: Address to listen on. An address other than a loopback address requires API keys.
        edge_port: Port to listen on. 0 means any free port.
        edge_tls_cert: PEM file of a certificate. If set, the edge speaks only HTTPS. If not set, it speaks HTTP, which
            is meant for loopback addresses or for an edge behind a proxy that terminates TLS.
        edge_tls_key: PEM file of the certificate's private key, without a password. If not set, the certificate's file
            must also contain the key.
        edge_instance: A name that no other edge has. A restart under the same name within the consumer group's session
            timeout causes no rebalance.
        api_keys_file: TOML or JSON file with a table ``keys``, which maps the SHA-256 of each key, in hex, to a
            tenant's name. If not set, no key is needed, and every request belongs to the tenant ``local``.
        metrics_tenants: Tenants whose keys may read ``/metrics``, separated by commas. If not set, every key may read
            it. The tenants in this list also see the usage and costs of every tenant at ``/ledger``. If the
            edge has API keys, any tenant that is not in the list sees only its own usage and costs there.
        input_gate: ``hold`` means that no text is shown before the verdict of a rails service. Set ``off`` only where
            no rails service runs, and set ``off`` for the router and the workers too.
        output_check: ``on`` means that a safety service must clear answers. At most ``max_exposure_tokens`` tokens of
            an answer are shown before they are cleared. Set ``off`` only where no safety service runs, and set ``off``
            for the router and the workers too.
        policy: Folder of the policy. The edge reads the tables ``[deadlines]`` and ``[classes]``, and reads them again
            after each change. It refuses a request whose deadlines are outside the policy's bounds.
        redis_url: ``redis://HOST:PORT`` of the Redis in which several edges share rate limits and idempotency keys. If
            not set, each edge has limits and keys of its own.
        allowed_origins: Web origins whose pages may use this edge, in addition to its own page, separated by commas.
        client_buffer_bytes: Maximum number of bytes that wait in the edge for one client to read them. If more bytes
            wait, the client is disconnected. It can resume the stream.
        max_streams: Maximum number of open streams. A stream is the delivery of one answer to one client.
        max_tenant_streams: Maximum number of open streams of one tenant on this edge. 0 means that only ``max_streams``
            limits them.
        max_socket_streams: Maximum number of unfinished requests on one websocket.
        max_connections: Maximum number of open connections, idle ones included. Beyond the limit, a new connection
            replaces the connection that has waited longest for its client to send something. If no connection waits,
            requests on the new connection are answered with 503, except for health checks.
        max_address_connections: Maximum number of open connections of one client address, or of one IPv6 network of 64
            bits. Beyond the limit, a new connection replaces the connection of the same address or network that has
            waited longest for its client to send something. If no such connection waits, requests on the new connection
            are answered with 429, except for health checks.
        body_memory_mb: Maximum total size, in MiB, of all request bodies and websocket messages that are not on the log
            yet. Beyond the limit, the oldest incomplete ones are dropped with 503. The process may need twice this
            memory.
        trusted_proxies: Addresses or networks of the proxies in front of this edge, separated by commas. Their
            connections count under the address in the header ``proxy_header``. If not set, all clients of a proxy count
            under the proxy's address.
        proxy_header: The header to which the proxies append the address of their client.
        request_timeout_ms: Maximum time for a client to send the head of its first request, and to send each body. For
            an upload to ``/v1/files``, this time begins again with each piece of at most 256 KiB.
        hello_timeout_ms: Maximum time for a client to send the first valid message on a websocket. If a key is needed
            and the handshake had none, this message must be ``hello`` with a key.
        idle_timeout_ms: Maximum time that a connection may stay open between two requests.
        rate_per_minute: Maximum number of a tenant's requests per minute. 0 means no limit.
        rate_burst: Maximum number of requests that a tenant may send at one moment. ``rate_per_minute`` limits the
            average.
        tokens_per_minute: Maximum number of a tenant's tokens per minute, in prompts and answers. A request is charged
            its ``max_tokens``, and one token for every 4 characters of its prompt. When the answer is complete, the
            tokens that it did not use are given back. 0 means no limit.
        tokens_burst: Maximum number of tokens that a tenant may use at one moment. ``tokens_per_minute`` limits the
            average. A request that needs more than ``tokens_burst`` tokens is charged only ``tokens_burst`` tokens.
        resumes_per_minute: Maximum number of times per minute that a tenant may resume a stream or read an answer
            again. 0 means no limit.
        resume_burst: Maximum number of times that a tenant may resume at one moment. ``resumes_per_minute`` limits the
            average.
        resume_ms: Time after a request's total deadline during which its answer can be read again.
        batch_dir: Folder of the files of batch jobs, shared with the batch service. If not set, ``/v1/files`` and
            ``/v1/batches`` are off.
        batch_file_mb: Maximum size of an uploaded file, in MiB.
        batch_tenant_files: Maximum number of files of a tenant, including those that its jobs wrote.
        batch_tenant_jobs: Maximum number of unfinished jobs of a tenant.
        edge_notice: A sentence at the top of the edge's web pages, ``/`` and ``/ledger``. It can say, for example, that
            a part of the installation is emulated.
        operator_page: Whether the web page at ``/`` still shows text that was taken back, and strikes it through. This
            is for an operator who examines a policy. Turn it on only where the people to whom the answers are addressed
            cannot open the page.
        edge_drain_ms: Maximum time that open streams may continue after the process was told to stop.
    """

    edge_host: str = setting("127.0.0.1", "address to listen on")
    edge_port: int = setting(8080, "port to listen on, 0 = any free port", ge=0, le=65_535)
    edge_tls_cert: Path | None = field(default=None, metadata={"help": "PEM file of the certificate for HTTPS"})
    edge_tls_key: Path | None = field(default=None, metadata={"help": "PEM file of the certificate's private key"})
    edge_instance: str | None = setting(None, "unique name of this edge, so that a quick restart causes no rebalance")
    api_keys_file: str | None = setting(
        None, "TOML or JSON file with the SHA-256 and the tenant of each API key; if not set, no key is needed"
    )
    metrics_tenants: str = setting("", "tenants that may read /metrics, separated by commas; if not set, all may")
    input_gate: Literal["hold", "off"] = setting(
        "hold", "hold = no text is shown before a rails service's verdict, off = no rails service runs"
    )
    output_check: Literal["on", "off"] = setting("on", "whether a safety service checks answers")
    policy: Path = field(default=DEFAULT_POLICY, metadata={"help": "folder of the policy"})
    redis_url: str | None = setting(
        None, "redis://HOST:PORT of the Redis in which edges share rate limits and idempotency keys", secret=True
    )
    allowed_origins: str = setting(
        "", "web origins whose pages may use the edge, besides its own page, separated by commas"
    )
    client_buffer_bytes: int = setting(
        262_144, "maximum number of bytes that wait for one client to read them", ge=4_096, le=1_073_741_824
    )
    max_streams: int = setting(1_024, "maximum number of open streams", ge=1, le=1_000_000)
    max_tenant_streams: int = setting(
        0, "maximum number of open streams of a tenant, 0 = limited only by RAILBUS_MAX_STREAMS", ge=0, le=1_000_000
    )
    max_socket_streams: int = setting(16, "maximum number of open requests on one websocket", ge=1, le=10_000)
    max_connections: int = setting(4_096, "maximum number of open connections", ge=1, le=1_000_000)
    max_address_connections: int = setting(
        1_024, "maximum number of open connections of one client address", ge=1, le=1_000_000
    )
    body_memory_mb: int = setting(
        12,
        "maximum total size in MiB of request bodies and websocket messages that are not on the log yet",
        ge=8,
        le=1_000_000,
    )
    trusted_proxies: str = setting("", "addresses or networks of the proxies in front of the edge, separated by commas")
    proxy_header: Literal["X-Forwarded-For", "Forwarded"] = setting(
        "X-Forwarded-For", "header to which proxies append the address of their client"
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
    rate_per_minute: int = setting(
        0, "maximum number of requests of a tenant per minute, 0 = no limit", ge=0, le=60_000_000
    )
    rate_burst: int = setting(10, "maximum number of requests of a tenant in a burst", ge=1, le=1_000_000)
    tokens_per_minute: int = setting(
        0, "maximum number of tokens of a tenant per minute, 0 = no limit", ge=0, le=1_000_000_000
    )
    tokens_burst: int = setting(100_000, "maximum number of tokens of a tenant in a burst", ge=1, le=1_000_000_000)
    resumes_per_minute: int = setting(
        0, "maximum number of times per minute that a tenant may resume a stream, 0 = no limit", ge=0, le=60_000_000
    )
    resume_burst: int = setting(
        100, "maximum number of times that a tenant may resume a stream in a burst", ge=1, le=1_000_000
    )
    resume_ms: int = setting(
        3_600_000,
        "time after a request's total deadline during which its answer can be read again",
        ge=0,
        le=7 * 86_400_000,
    )
    batch_dir: Path | None = field(
        default=None, metadata={"help": "folder of the files of batch jobs, shared with the batch service"}
    )
    batch_file_mb: int = setting(200, "maximum size of an uploaded file, in MiB", ge=1, le=100_000)
    batch_tenant_files: int = setting(1_000, "maximum number of files of a tenant", ge=1, le=1_000_000)
    batch_tenant_jobs: int = setting(16, "maximum number of unfinished jobs of a tenant", ge=1, le=10_000)
    edge_notice: str = setting("", "sentence at the top of the edge's web pages")
    operator_page: bool = setting(
        default=False, help_text="whether the web page still shows text that was taken back, struck through"
    )
    edge_drain_ms: int = setting(1_000, "how long open streams may continue when the process stops", ge=0, le=15_000)
    bus: BusSettings = field(default_factory=BusSettings)

    def __post_init__(self) -> None:
        trusted_proxies(self.trusted_proxies, self.proxy_header)
        if self.api_keys_file is None and not is_loopback(self.edge_host):
            raise UserError(
                f"RAILBUS_EDGE_HOST={self.edge_host} is not a loopback address, and there are no API keys: "
                "set RAILBUS_API_KEYS_FILE, or listen on 127.0.0.1"
            )

    @property
    def governance(self) -> Governance:
        return Governance(input_gate=self.input_gate, output_check=self.output_check)

    @property
    def rates(self) -> dict[Quota, Rate]:
        """The rate limits that apply to each tenant."""
        limits: dict[Quota, tuple[int, int]] = {
            "requests": (self.rate_per_minute, self.rate_burst),
            "tokens": (self.tokens_per_minute, self.tokens_burst),
            "resumes": (self.resumes_per_minute, self.resume_burst),
        }
        return {quota: Rate(per_minute, burst) for quota, (per_minute, burst) in limits.items() if per_minute}

    @property
    def proxies(self) -> TrustedProxies:
        return trusted_proxies(self.trusted_proxies, self.proxy_header)

    @property
    def metrics_readers(self) -> frozenset[str]:
        """The tenants whose keys may read the metrics; empty if every key may."""
        return frozenset(name.strip() for name in self.metrics_tenants.split(",") if name.strip())

    @property
    def origins(self) -> frozenset[str]:
        return frozenset(origin.strip().rstrip("/") for origin in self.allowed_origins.split(",") if origin.strip())
