"""Simulate one partition of each topic, and routers that read and write at their own pace."""

from collections import defaultdict
from dataclasses import dataclass, field

from schemas.base import AnyEvent
from schemas.topics import Topic
from services.bus import Received
from services.router.core import READ_TOPICS, RouterCore
from services.router.partition import Writes
from tests.unit.router.world import MAY_WRITE, MS, T0

SHARED = [topic for topic in READ_TOPICS if topic.key == "request_id"]


@dataclass
class Member:
    """A router's process. ``read`` counts the events it has read per topic. ``sent`` has events not on the log yet."""

    router: RouterCore
    read: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    sent: dict[str, list[AnyEvent]] = field(default_factory=lambda: defaultdict(list))


class SharedLog:
    """A simulated log, the simulated time, and the routers that use the log.

    Attributes:
        logs: The events of each topic, in order.
        appended_us: The time at which each event of each topic was appended.
        members: The running routers.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now_us = T0
        self.logs: dict[str, list[AnyEvent]] = {topic.name: [] for topic in SHARED}
        self.appended_us: dict[str, list[int]] = {topic.name: [] for topic in SHARED}
        self.members: list[Member] = []

    def settle(self) -> bool:
        """Append all sent events, and let the routers read all events. Return whether there was anything to do."""
        moved = False
        for member in self.members:
            for topic in SHARED:
                moved |= self.flush(member, topic)
                moved |= self.deliver(member, topic, 1_000_000)
        return moved

    @property
    def at_ms(self) -> float:
        return (self.now_us - T0) / MS

    def append(self, topic: Topic, event: AnyEvent) -> None:
        self.logs[topic.name].append(event)
        self.appended_us[topic.name].append(self.now_us)

    def send(self, member: Member, writes: Writes) -> None:
        for write in writes:
            assert type(write.event) in MAY_WRITE[write.topic.name]
            member.sent[write.topic.name].append(write.event)

    def flush(self, member: Member, topic: Topic) -> bool:
        events = member.sent.pop(topic.name, [])
        for event in events:
            self.append(topic, event)
        return bool(events)

    def deliver(self, member: Member, topic: Topic, count: int) -> bool:
        start = member.read[topic.name]
        events = self.logs[topic.name][start : start + count]
        member.read[topic.name] += len(events)
        for offset, event in enumerate(events, start):
            item = Received(topic.name, 0, offset, 0, event, None)
            self.send(member, member.router.read(item, self.appended_us[topic.name][offset], self.now_us))
        return bool(events)
