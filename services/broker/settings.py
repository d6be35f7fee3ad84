from dataclasses import dataclass
from pathlib import Path

from services.runtime.errors import UserError
from services.runtime.settings import is_loopback

NODE_ID = 1
CLUSTER_ID = "railbus-embedded-broker"  # 22 to 36 characters, like Kafka's
MEMORY_RETENTION_BYTES = 256 * 1024 * 1024
DISK_RETENTION_BYTES = 1024 * 1024 * 1024


class BadSetting(UserError):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """Settings of one broker. Sizes are in bytes and times in milliseconds."""

    host: str = "127.0.0.1"
    port: int = 9092  # 0 means any free port
    data_dir: Path | None = None
    partitions: int = 1  # of a topic that is created when a client first uses it
    auto_create_topics: bool = True  # the default is the same as Kafka's
    retention_bytes: int | None = None  # per partition, unless the topic sets its own; None: see `default_retention`
    memory_bytes: int = 1024 * 1024 * 1024  # for all partitions together; only without a data directory
    max_request_bytes: int = 32 * 1024 * 1024
    max_connections: int = 1000
    idle_connection_ms: int = 600_000  # Kafka's connections.max.idle.ms
    initial_join_delay_ms: int = 50  # an empty group waits this long for a second member before its first assignment
    min_session_ms: int = 6000  # Kafka's group.min.session.timeout.ms
    max_session_ms: int = 1_800_000

    @property
    def default_retention(self) -> int:
        if self.retention_bytes is not None:
            return self.retention_bytes
        return MEMORY_RETENTION_BYTES if self.data_dir is None else DISK_RETENTION_BYTES

    def check(self) -> None:
        """Check the settings.

        Raises:
            BadSetting: A setting has a value that cannot be used.
        """
        if not is_loopback(self.host):
            raise BadSetting(
                f"--host {self.host}: the embedded broker has no authentication and listens on loopback only; "
                "use 127.0.0.1, or run Apache Kafka for anything beyond this machine"
            )
        for name, value, least in (
            ("--port", self.port, 0),
            ("--partitions", self.partitions, 1),
            ("--retention-bytes", self.default_retention, -1),
            ("--memory-bytes", self.memory_bytes, 1 << 20),
            ("--max-connections", self.max_connections, 1),
        ):
            if value < least:
                raise BadSetting(f"{name} {value}: must be at least {least}")
        if self.port > 65535:
            raise BadSetting(f"--port {self.port}: must be at most 65535")
