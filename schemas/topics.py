"""The Kafka topics: names, keys, partitions and retention."""

from dataclasses import dataclass
from typing import Final, Literal

DAY_MS: Final = 86_400_000
DEFAULT_PARTITIONS: Final = 4

TIMESTAMP_TYPE: Final = "LogAppendTime"
"""The broker sets the timestamp of every record, so that no deadline depends on a writer's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """One topic.

    Attributes:
        key: The field of the event that is the record's key.
        spread: ``single``: the topic has one partition. ``requests``: the topic is partitioned by request. All such
            topics have the same number of partitions, and a request has the same partition number in each of them.
        about: What the topic holds, as a sentence.
    """

    name: str
    key: Literal["request_id", "tenant", "batch_id", "none"] = "request_id"
    spread: Literal["requests", "single"] = "requests"
    retention_ms: int = 7 * DAY_MS
    about: str

    def partitions(self, count: int) -> int:
        """Return how many partitions the topic has: 1 if ``spread`` is ``single``, otherwise ``count``."""
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
