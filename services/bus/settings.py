import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from schemas.topics import DEFAULT_PARTITIONS
from services.runtime.errors import UserError
from services.runtime.settings import setting

SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
SaslMechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BusSettings:
    """The Kafka brokers, and how a service connects to them.

    Attributes:
        bootstrap: The brokers to connect to first, as ``HOST:PORT``, several separated by commas.
        partitions: Number of partitions of each request topic and of ``railbus.streams``. All services must use the
            same number.
        replication: Number of replicas of each partition, for topics that a service creates. 0 means three if the
            cluster has at least three brokers, else one on each broker.
        min_insync_replicas: Number of replicas that must have a record before it is acknowledged, for topics that a
            service creates. 0 means two if there are three replicas or more, else one.
        linger_ms: Maximum time in milliseconds for which the producer collects chunks of an answer into one batch. The
            first chunk of an answer and all events except chunks are sent at once. A higher value costs less CPU.
        session_timeout_ms: A group member that sends no heartbeat for this many milliseconds loses its partitions.
        security_protocol: As in Kafka's ``security.protocol``.
        sasl_mechanism: As in Kafka's ``sasl.mechanism``.
        sasl_username: User name for SASL.
        sasl_password: Password for SASL. It is never logged.
        ssl_cafile: PEM file of the certificate authorities to trust. If it is not set, those of the operating system
            are trusted.
        ssl_certfile: PEM file of the client's certificate, for brokers that require one.
        ssl_keyfile: PEM file of the client's key, without a password.
    """

    bootstrap: str = setting(
        "127.0.0.1:9092",
        "brokers to connect to first, as HOST:PORT, separated by commas",
        env="RAILBUS_KAFKA_BOOTSTRAP",
    )
    partitions: int = setting(
        DEFAULT_PARTITIONS, "number of partitions of each topic that is partitioned by request id", ge=1, le=10_000
    )
    replication: int = setting(
        0, "number of replicas of each partition, 0 = 3, with fewer brokers one on each", ge=0, le=32
    )
    min_insync_replicas: int = setting(
        0,
        "number of replicas that must have a record before it is acknowledged, 0 = 2 of 3 or more, else 1",
        ge=0,
        le=32,
    )
    linger_ms: float = setting(
        10.0,
        "maximum time for which chunks of an answer are collected into one batch",
        env="RAILBUS_KAFKA_LINGER_MS",
        ge=0,
        le=1_000,
    )
    session_timeout_ms: int = setting(
        10_000,
        "time without a heartbeat after which a group member loses its partitions",
        env="RAILBUS_KAFKA_SESSION_TIMEOUT_MS",
        ge=1_000,
        le=300_000,
    )
    security_protocol: SecurityProtocol = setting(
        "PLAINTEXT",
        "protocol of the connections to Kafka, as in Kafka's security.protocol",
        env="RAILBUS_KAFKA_SECURITY_PROTOCOL",
    )
    sasl_mechanism: SaslMechanism = setting(
        "PLAIN", "SASL mechanism, as in Kafka's sasl.mechanism", env="RAILBUS_KAFKA_SASL_MECHANISM"
    )
    sasl_username: str | None = setting(None, "user name for SASL", env="RAILBUS_KAFKA_SASL_USERNAME")
    sasl_password: str | None = field(
        default=None,
        repr=False,
        metadata={"env": "RAILBUS_KAFKA_SASL_PASSWORD", "help": "password for SASL", "secret": True},
    )
    ssl_cafile: Path | None = setting(
        None, "PEM file of the trusted certificate authorities", env="RAILBUS_KAFKA_SSL_CAFILE"
    )
    ssl_certfile: Path | None = setting(None, "PEM file of the client's certificate", env="RAILBUS_KAFKA_SSL_CERTFILE")
    ssl_keyfile: Path | None = setting(
        None, "PEM file of the client's private key, without a password", env="RAILBUS_KAFKA_SSL_KEYFILE"
    )

    def __post_init__(self) -> None:
        _check_addresses(self.bootstrap)
        if self.sasl and (self.sasl_username is None or self.sasl_password is None):
            raise UserError(
                f"RAILBUS_KAFKA_SECURITY_PROTOCOL={self.security_protocol} needs RAILBUS_KAFKA_SASL_USERNAME"
                " and RAILBUS_KAFKA_SASL_PASSWORD"
            )
        if not self.sasl and (self.sasl_username or self.sasl_password):
            raise UserError(
                "RAILBUS_KAFKA_SASL_USERNAME and _PASSWORD are set, but RAILBUS_KAFKA_SECURITY_PROTOCOL="
                f"{self.security_protocol} sends none: set it to SASL_SSL or SASL_PLAINTEXT"
            )
        files = (self.ssl_cafile, self.ssl_certfile, self.ssl_keyfile)
        if any(files) and not self.tls:
            raise UserError(
                "RAILBUS_KAFKA_SSL_* files are set, but RAILBUS_KAFKA_SECURITY_PROTOCOL="
                f"{self.security_protocol} does not encrypt: set it to SSL or SASL_SSL"
            )
        if self.ssl_keyfile is not None and self.ssl_certfile is None:
            raise UserError("RAILBUS_KAFKA_SSL_KEYFILE needs RAILBUS_KAFKA_SSL_CERTFILE beside it")

    @property
    def sasl(self) -> bool:
        return self.security_protocol.startswith("SASL")

    @property
    def tls(self) -> bool:
        return self.security_protocol.endswith("SSL")

    def addresses(self) -> list[tuple[str, int]]:
        return _check_addresses(self.bootstrap)

    def servers(self) -> list[str]:
        """Return each address as ``HOST:PORT``, with brackets around an IPv6 address."""
        return [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.addresses()]

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return the TLS context; None if the connection is not encrypted.

        Raises:
            UserError: One of the PEM files cannot be read or is not a PEM file.
        """
        if not self.tls:
            return None
        try:
            context = ssl.create_default_context(cafile=self.ssl_cafile)
            if self.ssl_certfile is not None:
                context.load_cert_chain(self.ssl_certfile, self.ssl_keyfile, password=_no_password)
        except (OSError, ssl.SSLError) as error:
            raise UserError(
                f"RAILBUS_KAFKA_SSL_CAFILE, _CERTFILE or _KEYFILE cannot be used: {error}; give PEM files, and a key"
                " without a password"
            ) from None
        return context


def _no_password() -> str:
    return ""  # without a password function, OpenSSL would ask for a password on the terminal


def _check_addresses(bootstrap: str) -> list[tuple[str, int]]:
    found = []
    for address in bootstrap.split(","):
        host, _, port = address.strip().rpartition(":")
        if not _is_host(host) or not port.isdigit() or not 0 < int(port) < 65_536:
            raise UserError(f"RAILBUS_KAFKA_BOOTSTRAP={bootstrap!r}: must be HOST:PORT, such as 127.0.0.1:9092")
        found.append((host.strip("[]"), int(port)))
    return found


def _is_host(host: str) -> bool:
    try:
        return bool(host.encode("idna"))  # as the event loop does it before it looks the name up
    except UnicodeError:  # an empty label, or one that is too long
        return False
