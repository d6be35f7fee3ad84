"""The router without I/O: events and the time in, events to write out."""

from collections import deque
from typing import Final

from schemas.base import Event
from schemas.books import DeadLetter
from schemas.registry import reads, writes
from schemas.stream import Closed
from schemas.topics import DEAD, STREAMS, TOPICS
from services.bus import Received, Unread, partition_for
from services.processor import Core, Write
from services.router.dead import dead_letter, misplaced, rejection, stray
from services.router.means import Means
from services.router.policy import Policy
from services.router.shard import NOTHING, Shard, Writes

_MAY_STAND: Final = reads("router")

READ: Final = tuple(topic for topic in TOPICS if topic.name in _MAY_STAND and topic is not DEAD)
"""What the router's group reads, some of it only to find what cannot be read. ``railbus.dead`` is followed besides."""

MAX_REJECTED: Final = 10_000
"""Unreadable requests of one shard remembered while it folds; of more, the newest. All of them get dead letters."""

_ASKS: Final = frozenset(writes("app"))
"""Topics where somebody outside waits for what it wrote."""


class Router(Core):
    """All shards of one router process.

    Args:
        policy: What the operator allows.
        source: The router's own name in what it writes.
        partitions: How many partitions the request topics have.
    """

    def __init__(self, policy: Policy, source: str, partitions: int) -> None:
        self._policy = policy
        self._source = source
        self._count = partitions
        self._means = Means(policy)
        self._shards: dict[int, Shard] = {}
        self._rejected: dict[int, deque[Closed]] = {}
        self._dead_letters: dict[tuple[str, int, int], int] = {}

    @property
    def open(self) -> int:
        """Requests that are not closed and accounted for."""
        return sum(len(shard.cases) for shard in self._shards.values())

    def gained(self, number: int) -> None:
        """Fold the requests of a partition."""
        self._shards[number] = Shard(self._policy, self._means, self._source)
        self._rejected[number] = deque(maxlen=MAX_REJECTED)
        self._share()

    def lost(self, number: int) -> None:
        """Give back what a partition's requests held."""
        self._shards.pop(number).give_up()
        del self._rejected[number]
        self._share()

    def caught_up(self, number: int, known_us: int, now_us: int) -> Writes:
        """Decide about all that was found."""
        writes = self._shards[number].catch_up(known_us, now_us)
        rejected = self._rejected[number]
        while rejected:
            writes += self._reject(rejected.popleft())
        return writes

    def alarm_us(self, number: int, now_us: int) -> int | None:
        """When the clock alone changes what is owed to a request of this partition."""
        return self._shards[number].alarm_us(now_us)

    def tick(self, number: int, known_us: int, now_us: int) -> Writes:
        """Look at the requests whose alarm rings."""
        return self._shards[number].tick(known_us, now_us)

    def read(self, item: Received | Unread, at_us: int, now_us: int) -> Writes:
        """Fold one record."""
        if isinstance(item, Unread):
            return self._unreadable(item, now_us)
        if type(item.event) not in _MAY_STAND[item.topic]:
            return self._unreadable(stray(item), now_us)
        shard = self._shards.get(item.partition)
        if shard is None or not isinstance(item.event, Event):
            return NOTHING
        request_id = item.event.request_id
        if request_id not in shard.cases:
            belongs = partition_for(request_id, self._count)
            if belongs != item.partition:
                return self._unreadable(misplaced(item, belongs), now_us)
        return shard.read(item.event, item.traceparent, at_us, now_us)

    def on_dead_letter(self, letter: DeadLetter) -> None:
        """A dead letter was read back: the record it holds needs no other, whoever wrote it."""
        self._dead_letters[letter.topic, letter.partition, letter.offset] = letter.at
        while self._dead_letters:
            oldest = next(iter(self._dead_letters))
            if self._dead_letters[oldest] + self._policy.window_us > letter.at:
                break
            del self._dead_letters[oldest]

    def _share(self) -> None:
        self._means.budget.limits = self._policy.limits.share(len(self._shards) / self._count)

    def _unreadable(self, item: Unread, now_us: int) -> Writes:
        writes: Writes = []
        closed = rejection(item, now_us, self._source) if item.topic in _ASKS else None
        if closed is not None:
            shard = self._shards.get(item.partition)
            if shard is None or shard.deciding:
                writes += self._reject(closed)
            else:
                self._rejected[item.partition].append(closed)
        if (item.topic, item.partition, item.offset) not in self._dead_letters:
            writes.append(Write(DEAD, dead_letter(item, now_us, self._source)))
        return writes

    def _reject(self, closed: Closed) -> Writes:
        """Closes a request that nobody could read, unless somebody did read it, or another router must judge."""
        shard = self._shards.get(partition_for(closed.request_id, self._count))
        if shard is None or not shard.deciding or shard.knows(closed.request_id):
            return []
        return [Write(STREAMS, closed)]
