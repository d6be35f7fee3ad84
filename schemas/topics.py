"""The one list of topics."""

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
        kinds: The events that may stand on it.
        key: What its records are keyed by.
        spread: ``requests`` topics share one partition count, so that partition p of each is about the same requests;
            ``single`` has one partition.
        retention_ms: How long records are kept, in milliseconds.
        about: What it holds.
    """

    name: str
    kinds: tuple[str, ...]
    key: Literal["request_id", "tenant", "none"] = "request_id"
    spread: Literal["requests", "single"] = "requests"
    retention_ms: int = 7 * DAY_MS
    about: str

    def partitions(self, count: int) -> int:
        """Partitions of this topic when the request topics have ``count``."""
        return count if self.spread == "requests" else 1


STREAM_KINDS: Final = (
    "Verdict", "Started", "Chunk", "Finished", "Failed", "Cutover", "Cleared", "Recall", "Closed",
)  # fmt: skip

REQUESTS: Final = Topic(name="railbus.requests", kinds=("Request",), about="Prompts that want an answer.")
REQUESTS_BATCH: Final = Topic(
    name="railbus.requests.batch", kinds=("Request",), about="Prompts that wait for the interactive ones."
)
REQUESTS_VERTEX: Final = Topic(
    name="railbus.requests.vertex",
    kinds=("Request",),
    about="Attempts 2 and later, for the Vertex AI worker.",
)
STREAMS: Final = Topic(
    name="railbus.streams",
    kinds=STREAM_KINDS,
    about="The stream log: everything said about answers, in one order.",
)
CONTROL: Final = Topic(name="railbus.control", kinds=("Cancel",), retention_ms=DAY_MS, about="What workers must stop.")
RECEIPTS: Final = Topic(
    name="railbus.receipts", kinds=("Attached", "Detached"), about="What each client connection was sent."
)
ACCOUNTS: Final = Topic(name="railbus.accounts", kinds=("Account",), about="The books of each closed request.")
LEDGER: Final = Topic(
    name="railbus.ledger",
    kinds=("Window",),
    key="tenant",
    spread="single",
    about="Sums over accounts and receipts.",
)
DEAD: Final = Topic(
    name="railbus.dead", kinds=("DeadLetter",), key="none", spread="single", retention_ms=30 * DAY_MS,
    about="Records that could not be read, as they were.",
)  # fmt: skip

TOPICS: Final = (
    REQUESTS, REQUESTS_BATCH, REQUESTS_VERTEX, STREAMS, CONTROL, RECEIPTS, ACCOUNTS, LEDGER, DEAD,
)  # fmt: skip
