"""The one list of topics: names, keys, partitions, retention. Which events stand there: ``schemas.registry``."""

from dataclasses import dataclass
from typing import Final, Literal

DAY_MS: Final = 86_400_000
DEFAULT_PARTITIONS: Final = 4

TIMESTAMP_TYPE: Final = "LogAppendTime"
"""Whose time the records of every topic have: the broker's, so that no writer's clock decides about a deadline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """One topic's contract.

    Attributes:
        name: On the broker.
        key: What its records are keyed by.
        spread: ``requests`` topics share one partition count, so that partition p of each is about the same requests;
            ``single`` has one partition.
        retention_ms: How long records are kept, in milliseconds.
        about: What it holds.
    """

    name: str
    key: Literal["request_id", "tenant", "none"] = "request_id"
    spread: Literal["requests", "single"] = "requests"
    retention_ms: int = 7 * DAY_MS
    about: str

    def partitions(self, count: int) -> int:
        """Partitions of this topic when the request topics have ``count``."""
        return count if self.spread == "requests" else 1


REQUESTS: Final = Topic(name="railbus.requests", about="Prompts that want an answer.")
REQUESTS_BATCH: Final = Topic(name="railbus.requests.batch", about="Prompts that wait for the interactive ones.")
REQUESTS_VERTEX: Final = Topic(name="railbus.requests.vertex", about="Attempts 2 and later, for the Vertex AI worker.")
STREAMS: Final = Topic(name="railbus.streams", about="The stream log: everything said about answers, in one order.")
CONTROL: Final = Topic(name="railbus.control", retention_ms=DAY_MS, about="What workers must stop.")
RECEIPTS: Final = Topic(name="railbus.receipts", about="What each client connection was sent.")
ACCOUNTS: Final = Topic(name="railbus.accounts", about="The books of each closed request.")
LEDGER: Final = Topic(name="railbus.ledger", key="tenant", spread="single", about="Sums over accounts and receipts.")
DEAD: Final = Topic(
    name="railbus.dead", key="none", spread="single", retention_ms=30 * DAY_MS,
    about="Records that could not be read, as they were.",
)  # fmt: skip

TOPICS: Final = (
    REQUESTS, REQUESTS_BATCH, REQUESTS_VERTEX, STREAMS, CONTROL, RECEIPTS, ACCOUNTS, LEDGER, DEAD,
)  # fmt: skip

TOPIC_NAMED: Final = {topic.name: topic for topic in TOPICS}
