"""The router's decisions, without I/O. ``RouterCore`` takes events and the time, and returns the events to write."""

from typing import Final

from schemas.base import Event
from schemas.registry import reads, writes
from schemas.side_events import DeadLetter
from schemas.stream import Closed
from schemas.topics import DAY_MS, DEAD, STREAMS, TOPICS
from services.bus import Received, UnreadableRecord, partition_for
from services.processor import Core, Write
from services.router.config import RouterConfig
from services.router.dead_letters import dead_letter, rejection, unread_record, wrong_partition, wrong_topic
from services.router.partition import NO_WRITES, RouterPartition, SharedResources, Writes

_KINDS_BY_TOPIC: Final = reads("router")

READ_TOPICS: Final = tuple(topic for topic in TOPICS if topic.name in _KINDS_BY_TOPIC and topic is not DEAD)
"""The topics that the router's group reads. Some are read only to find unreadable records."""

LETTERS_MS: Final = 2 * DAY_MS
"""Milliseconds for which dead letters are remembered. A router never reads more of the log again than this."""

MAX_LETTERS: Final = 100_000
"""Maximum number of dead letters remembered. A forgotten one may be written a second time after a restart."""

_REQUEST_TOPICS: Final = frozenset(writes("app"))
"""Topics to which applications write requests. An unreadable request on one of them must be closed."""


class RouterCore(Core):
    """Makes the decisions for all partitions of one router process.

    Args:
        source: The router's name in the events that it writes.
        partitions: Number of partitions of each request topic.
    """

    def __init__(self, config: RouterConfig, source: str, partitions: int) -> None:
        self._count = partitions
        self._shared = SharedResources(config, source)
        self._partitions: dict[int, RouterPartition] = {}
        self._dead_letters: dict[tuple[str, int, int], int] = {}

    @property
    def open(self) -> int:
        return sum(len(partition.requests) for partition in self._partitions.values())

    @property
    def breaker_open(self) -> bool:
        return self._shared.breaker.state != "closed"

    def reconfigure(self, config: RouterConfig) -> None:
        """Apply another configuration to new requests. Open requests keep the configuration that they began with."""
        self._shared.config = config

    def fallback_used(self, now_us: int) -> float:
        """Return how much of the last minute's fallback budget was spent: 0 is nothing, 1 is all of it.

        ``FallbackBudget.used`` has the exact rule.
        """
        return self._shared.budget.used(now_us)

    def gained(self, number: int) -> None:
        self._partitions[number] = RouterPartition(self._shared)
        self._share()

    def lost(self, number: int) -> None:
        self._partitions.pop(number).give_up()
        self._share()

    def caught_up(self, number: int, known_us: int, now_us: int) -> Writes:
        partition = self._partitions[number]
        writes = partition.catch_up(known_us, now_us)
        while partition.rejected:
            writes += self._reject(partition.rejected.popleft())
        return writes

    def alarm_us(self, number: int, now_us: int) -> int | None:
        return self._partitions[number].alarm_us(now_us)

    def tick(self, number: int, known_us: int, now_us: int) -> Writes:
        return self._partitions[number].tick(known_us, now_us)

    def read(self, item: Received | UnreadableRecord, at_us: int, now_us: int) -> Writes:
        if type(item) is UnreadableRecord:
            return self._unreadable(item, now_us)
        event = item.event
        if type(event) not in _KINDS_BY_TOPIC[item.topic]:
            return self._unreadable(wrong_topic(item), now_us)
        partition = self._partitions.get(item.partition)
        if partition is None or not isinstance(event, Event):
            return NO_WRITES
        request_id = event.request_id
        if request_id not in partition.requests:
            belongs = partition_for(request_id, self._count)
            if belongs != item.partition:
                return self._unreadable(wrong_partition(item, belongs), now_us)
        return partition.read(item, event, at_us, now_us)

    def on_dead_letter(self, letter: DeadLetter, log_ms: int, now_us: int) -> Writes:
        """Remember a dead letter, which was appended at ``log_ms`` by the broker's clock.

        The letter may be about a request that another router found in a wrong partition. Reject the request if this
        router reads the right partition and knows no request with the same id there. If the letter is older than
        ``RouterConfig.window_us``, reject nothing, because this router may have forgotten a request with that id.
        """
        self._remember(letter, log_ms)
        shared = self._shared
        old = log_ms * 1_000 < now_us - shared.config.window_us
        if letter.source == shared.source or letter.topic not in _REQUEST_TOPICS or old:
            return []
        record = unread_record(letter, log_ms)
        closed = None if record is None else rejection(record, now_us, shared.source)
        if closed is None or partition_for(closed.request_id, self._count) == letter.partition:
            return []
        return self._reject(closed)

    def _remember(self, letter: DeadLetter, log_ms: int) -> None:
        self._dead_letters[letter.topic, letter.partition, letter.offset] = log_ms
        while self._dead_letters:
            oldest = next(iter(self._dead_letters))
            too_many = len(self._dead_letters) > MAX_LETTERS
            if self._dead_letters[oldest] + LETTERS_MS > log_ms and not too_many:
                break
            del self._dead_letters[oldest]

    def _share(self) -> None:
        part = len(self._partitions) / self._count
        shared = self._shared
        shared.budget.limits = shared.config.limits.share(part)
        shared.retry_budget.limits = shared.config.retry_limits.share(part)

    def _unreadable(self, item: UnreadableRecord, now_us: int) -> Writes:
        writes: Writes = []
        closed = rejection(item, now_us, self._shared.source) if item.topic in _REQUEST_TOPICS else None
        if closed is not None:
            partition = self._partitions.get(item.partition)
            if partition is None or partition.deciding:
                writes += self._reject(closed)
            else:
                partition.rejected.append(closed)
        if (item.topic, item.partition, item.offset) not in self._dead_letters:
            writes.append(Write(DEAD, dead_letter(item, now_us, self._shared.source)))
        return writes

    def _reject(self, closed: Closed) -> Writes:
        partition = self._partitions.get(partition_for(closed.request_id, self._count))
        if partition is not None and not partition.deciding:
            partition.rejected.append(closed)  # decided when this partition has caught up, too
            return []
        if partition is None or partition.knows(closed.request_id):
            return []
        return [Write(STREAMS, closed)]
