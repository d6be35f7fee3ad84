"""The configuration of a topic.

The broker applies some of Kafka's topic settings, accepts some without effect, and rejects all others.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

MAX_MESSAGE_BYTES = 1048588  # Kafka's default: 1 MiB and a batch's overhead
WEEK_MS = 7 * 24 * 3600 * 1000
SMALLEST_SEGMENT_BYTES = 64 * 1024
LARGEST_SEGMENT_BYTES = 16 * 1024 * 1024
KAFKA_SEGMENT_BYTES = 1024**3
COMPACTED_SEGMENT_BYTES = 256 * 1024  # a closed segment is compacted in one step, so small segments cause short pauses
DAY_MS = 24 * 3600 * 1000

# Entries of Kafka without effect here. This broker is one node without a flush policy, and compacts a log when half of
# the bytes in its closed segments are new.
_WITHOUT_EFFECT = frozenset(
    {
        "file.delete.delay.ms", "flush.messages", "flush.ms", "index.interval.bytes",
        "max.compaction.lag.ms", "min.cleanable.dirty.ratio", "min.compaction.lag.ms", "min.insync.replicas",
        "preallocate", "segment.index.bytes", "segment.jitter.ms", "segment.ms", "unclean.leader.election.enable",
        "message.downconversion.enable", "leader.replication.throttled.replicas",
        "follower.replication.throttled.replicas", "message.format.version", "message.timestamp.before.max.ms",
    }
)  # fmt: skip
# Entries that accept only this value.
_ONLY = {"compression.type": "producer"}
_POLICIES = frozenset({"delete", "compact", "compact,delete", "delete,compact"})
# Whether records get the broker's append time instead of the client's timestamp.
_TIMESTAMP_TYPES = {"CreateTime": False, "LogAppendTime": True}


class InvalidConfig(Exception):
    """A configuration entry is rejected. The message names the entry and the allowed values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """The configuration of a topic. As in Kafka, -1 means unlimited."""

    retention_ms: int = WEEK_MS
    retention_bytes: int = 256 * 1024 * 1024  # per partition
    segment_bytes: int = KAFKA_SEGMENT_BYTES
    max_message_bytes: int = MAX_MESSAGE_BYTES
    timestamp_after_max_ms: int = 3600 * 1000
    append_time: bool = False  # records get the broker's append time, not the client's timestamp
    cleanup_policy: str = "delete"
    delete_retention_ms: int = DAY_MS  # how long a compacted topic keeps a tombstone
    given: Mapping[str, str] = field(default_factory=dict)  # the entries that the client set, unchanged
    compacts: bool = field(init=False)
    roll_bytes: int = field(init=False)  # size at which a segment is closed

    def __post_init__(self) -> None:
        # Computed once, because each append needs them.
        object.__setattr__(self, "compacts", "compact" in self.cleanup_policy)
        object.__setattr__(self, "roll_bytes", self._roll_bytes())

    @property
    def deletes(self) -> bool:
        return "delete" in self.cleanup_policy

    def _roll_bytes(self) -> int:
        if self.compacts:
            return min(self.segment_bytes, COMPACTED_SEGMENT_BYTES)
        # Retention drops whole segments, so a segment has an eighth of `retention_bytes`.
        eighth = self.retention_bytes // 8 if self.retention_bytes >= 0 else LARGEST_SEGMENT_BYTES
        return min(self.segment_bytes, LARGEST_SEGMENT_BYTES, max(SMALLEST_SEGMENT_BYTES, eighth))

    def with_settings(self, settings: Mapping[str, str | None]) -> "TopicConfig":
        """Return a copy of this configuration with these entries changed.

        Raises:
            InvalidConfig: An entry is rejected.
        """
        changed = self
        for name, value in settings.items():
            changed = _set(changed, name, value)
        return replace(changed, given={**self.given, **{k: v for k, v in settings.items() if v is not None}})

    def entries(self) -> dict[str, str]:
        shown = {
            "cleanup.policy": self.cleanup_policy,
            "delete.retention.ms": str(self.delete_retention_ms),
            "max.message.bytes": str(self.max_message_bytes),
            "message.timestamp.after.max.ms": str(self.timestamp_after_max_ms),
            "message.timestamp.type": next(n for n, value in _TIMESTAMP_TYPES.items() if value is self.append_time),
            "retention.bytes": str(self.retention_bytes),
            "retention.ms": str(self.retention_ms),
            "segment.bytes": str(self.segment_bytes),
        }
        return {**_ONLY, **dict(self.given), **shown}


_NUMBERS = {
    "delete.retention.ms": ("delete_retention_ms", 0),
    "retention.ms": ("retention_ms", -1),
    "retention.bytes": ("retention_bytes", -1),
    "segment.bytes": ("segment_bytes", 1024 * 1024),
    "max.message.bytes": ("max_message_bytes", 0),
    "message.timestamp.after.max.ms": ("timestamp_after_max_ms", 0),
}


def _set(config: TopicConfig, name: str, value: str | None) -> TopicConfig:
    if value is None:
        raise InvalidConfig(f"Null value not supported for topic config {name}")
    if name in _NUMBERS:
        field_name, least = _NUMBERS[name]
        numbers: dict[str, Any] = {field_name: _number(name, value, least)}
        return replace(config, **numbers)
    if name == "cleanup.policy":
        if value.replace(" ", "") not in _POLICIES:
            raise InvalidConfig(f"Invalid value {value} for configuration {name}: must be delete, compact or both")
        return replace(config, cleanup_policy=value)
    if name == "message.timestamp.type":
        if value not in _TIMESTAMP_TYPES:
            raise InvalidConfig(f"Invalid value {value} for configuration {name}: must be CreateTime or LogAppendTime")
        return replace(config, append_time=_TIMESTAMP_TYPES[value])
    if name in _ONLY and value != _ONLY[name]:
        raise InvalidConfig(f"Invalid value {value} for {name}: the embedded broker only supports {_ONLY[name]}")
    if name not in _ONLY and name not in _WITHOUT_EFFECT:
        raise InvalidConfig(f"Unknown topic config name: {name}")
    return config


def _number(name: str, value: str, least: int) -> int:
    try:
        number = int(value)
    except ValueError:
        raise InvalidConfig(f"Invalid value {value} for configuration {name}: not a number") from None
    if not least <= number < 2**63:
        raise InvalidConfig(f"Invalid value {value} for configuration {name}: must be at least {least}")
    return number
