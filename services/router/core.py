"""The router without I/O: events and the time in, events to write out."""

from collections import deque
from collections.abc import Iterable
from typing import Final

from schemas.base import Event
from schemas.books import DeadLetter
from schemas.registry import reads, writes
from schemas.stream import Closed
from schemas.topics import DEAD, STREAMS, TOPICS
from services.bus import Received, TopicPartitions, Unread, partition_for
from services.router.dead import dead_letter, misplaced, rejection, stray
from services.router.effects import Write
from services.router.means import Means
from services.router.policy import Policy
from services.router.shard import NOTHING, Shard, Writes

_MAY_STAND: Final = reads("router")

READ: Final = tuple(topic for topic in TOPICS if topic.name in _MAY_STAND and topic is not DEAD)
"""Everything the router's group reads, some of it only to find what cannot be read. ``railbus.dead`` is followed
besides."""

SHARED: Final = tuple(topic for topic in READ if topic.spread == "requests")
"""Topics of equal partition count: one partition number of all of them is one shard."""

MAX_REJECTED: Final = 10_000
"""Unreadable requests of one shard remembered while it folds; of more, the newest. All of them get dead letters."""

_ASKS: Final = frozenset(writes("app"))
"""Topics where somebody outside waits for what it wrote."""

_SHARED_NAMES: Final = frozenset(topic.name for topic in SHARED)


class Router:
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
        self._behind: dict[int, set[str]] = {}
        self._rejected: dict[int, deque[Closed]] = {}
        self._buried: dict[tuple[str, int, int], int] = {}

    @property
    def open(self) -> int:
        """Requests that are not closed and accounted for."""
        return sum(len(shard.cases) for shard in self._shards.values())

    @property
    def deciding(self) -> bool:
        """Whether every shard has caught up with the log."""
        return all(shard.deciding for shard in self._shards.values())

    @property
    def next_alarm_us(self) -> int | None:
        """When ``tick`` should be called, microseconds since the epoch."""
        alarms = [at for shard in self._shards.values() if (at := shard.next_alarm_us) is not None]
        return min(alarms, default=None)

    def assign(self, held: TopicPartitions) -> None:
        """These are held from now on. A shard that was held before goes on; a new one folds before it decides.

        Raises:
            RuntimeError: A partition number is not held of all shared topics.
        """
        numbers = {partition for topic, partition in held if topic in _SHARED_NAMES}
        for number in numbers:
            missing = [topic.name for topic in SHARED if (topic.name, number) not in held]
            if missing:
                msg = f"partition {number} is held, but not of {', '.join(missing)}: do all routers have one version?"
                raise RuntimeError(msg)
        for gone in self._shards.keys() - numbers:
            self._shards[gone].give_up()
            del self._shards[gone], self._behind[gone], self._rejected[gone]
        for number in numbers - self._shards.keys():
            self._shards[number] = Shard(self._policy, self._means, self._source)
            self._behind[number] = set(_SHARED_NAMES)
            self._rejected[number] = deque(maxlen=MAX_REJECTED)
        self._means.budget.limits = self._policy.limits.share(len(numbers) / self._count)

    def caught_up(self, held: Iterable[tuple[str, int]], now_us: int) -> Writes:
        """These were read to where they ended when they were assigned."""
        writes: Writes = []
        for topic, number in held:
            behind = self._behind.get(number)
            if topic not in _SHARED_NAMES or not behind:
                continue
            behind.discard(topic)
            if not behind:
                writes += self._begin(number, now_us)
        return writes

    def read(self, item: Received | Unread, now_us: int) -> Writes:
        """Folds one record; what is to be written then."""
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
        return shard.read(item.event, item.traceparent, now_us)

    def buried(self, letter: DeadLetter) -> None:
        """A dead letter was read back: the record it holds needs no other, whoever wrote it."""
        self._buried[letter.topic, letter.partition, letter.offset] = letter.at
        while self._buried:
            oldest = next(iter(self._buried))
            if self._buried[oldest] + self._policy.window_us > letter.at:
                break
            del self._buried[oldest]

    def tick(self, now_us: int) -> Writes:
        """What the clock alone brings about."""
        return [write for shard in self._shards.values() if shard.deciding for write in shard.tick(now_us)]

    def _begin(self, number: int, now_us: int) -> Writes:
        writes = self._shards[number].catch_up(now_us)
        rejected = self._rejected[number]
        while rejected:
            writes += self._reject(rejected.popleft())
        return writes

    def _unreadable(self, item: Unread, now_us: int) -> Writes:
        writes: Writes = []
        closed = rejection(item, now_us, self._source) if item.topic in _ASKS else None
        if closed is not None:
            shard = self._shards.get(item.partition)
            if shard is None or shard.deciding:
                writes += self._reject(closed)
            else:
                self._rejected[item.partition].append(closed)
        if (item.topic, item.partition, item.offset) not in self._buried:
            writes.append(Write(DEAD, dead_letter(item, now_us, self._source)))
        return writes

    def _reject(self, closed: Closed) -> Writes:
        """Closes a request that nobody could read, unless somebody did read it, or another router must judge."""
        shard = self._shards.get(partition_for(closed.request_id, self._count))
        if shard is None or not shard.deciding or shard.knows(closed.request_id):
            return []
        return [Write(STREAMS, closed)]
