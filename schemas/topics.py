"""The topics: names, keys, partitions, retention. Which events they hold: ``schemas.registry``."""

from dataclasses import dataclass
from typing import Final, Literal

DAY_MS: Final = 86_400_000
DEFAULT_PARTITIONS: Final = 4

TIMESTAMP_TYPE: Final = "LogAppendTime"
"""Records of every topic have the broker's time, so that no writer's clock decides about a deadline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """One topic's contract.

    Attributes:
        key: The field that keys its records.
        spread: ``requests`` topics share one partition count, so that partition p of each is about the same requests;
            ``single`` has one partition.
        about: What it holds.
    """

    name: str
    key: Literal["request_id", "tenant", "batch_id", "none"] = "request_id"
    spread: Literal["requests", "single"] = "requests"
    retention_ms: int = 7 * DAY_MS
    about: str

    def partitions(self, count: int) -> int:
        """Return the number of partitions when the request topics have ``count``."""
        return count if self.spread == "requests" else 1


REQUESTS: Final = Topic(name="railbus.requests", about="Prompts to answer.")
REQUESTS_BATCH: Final = Topic(
    name="railbus.requests.batch", about="Prompts that are answered after the interactive ones."
)
REQUESTS_VERTEX: Final = Topic(name="railbus.requests.vertex", about="Attempts 2 and later, for the Vertex AI worker.")
STREAMS: Final = Topic(name="railbus.streams", about="The stream log: all events about answers, in one order.")
CONTROL: Final = Topic(name="railbus.control", retention_ms=DAY_MS, about="Cancellations for workers.")
RECEIPTS: Final = Topic(name="railbus.receipts", about="What each client connection was sent.")
ACCOUNTS: Final = Topic(name="railbus.accounts", about="Costs and times of each closed request.")
LEDGER: Final = Topic(name="railbus.ledger", key="tenant", spread="single", about="Sums over accounts and receipts.")
BATCHES: Final = Topic(
    name="railbus.batches", key="batch_id", spread="single", retention_ms=30 * DAY_MS,
    about="Batch jobs: what they are, and how far they have come.",
)  # fmt: skip
DEAD: Final = Topic(
    name="railbus.dead", key="none", spread="single", retention_ms=30 * DAY_MS,
    about="Records that could not be read, unchanged.",
)  # fmt: skip

TOPICS: Final = (
    REQUESTS, REQUESTS_BATCH, REQUESTS_VERTEX, STREAMS, CONTROL, RECEIPTS, ACCOUNTS, LEDGER, BATCHES, DEAD,
)  # fmt: skip

TOPIC_NAMED: Final = {topic.name: topic for topic in TOPICS}
