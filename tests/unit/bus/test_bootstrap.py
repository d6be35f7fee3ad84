"""Tests of nodes that cannot be reached or have moved, and of topics that are not known yet or have no leader."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError, NodeNotReadyError
from aiokafka.protocol.metadata import MetadataResponse_v1

from schemas.topics import DEAD, STREAMS, TOPICS
from services.bus import BusSettings
from services.bus.kafka import broker_health, clients, topics
from services.runtime.errors import UserError
from services.runtime.metrics import BROKER_AWAY


class Connection:
    async def close(self) -> None: ...


async def test_one_bootstrap_address_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    async def connect(_settings: BusSettings, host: str, _port: int, **_: Any) -> Connection:
        if host == "boot-1":
            raise ConnectionRefusedError
        return Connection()

    monkeypatch.setattr(broker_health, "connect", connect)
    before = BROKER_AWAY._value.get()
    broker_health.health_of("boot-1", 9092).mark_unreachable("connection refused")
    await broker_health.wait_for_broker(BusSettings(bootstrap="boot-1:9092,boot-2:9092"))
    assert BROKER_AWAY._value.get() == before


async def test_a_node_that_does_not_know_a_topic_yet_is_asked_again() -> None:
    class Admin:
        async def describe_topics(self, names: list[str]) -> list[dict[str, Any]]:
            return [{"error_code": 3, "topic": name, "partitions": []} for name in names]

    with pytest.raises(KafkaError):
        await topics._replications(Admin(), TOPICS[:1])


async def test_a_cluster_whose_nodes_cannot_be_reached_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[BusSettings] = []

    @asynccontextmanager
    async def admin(settings: BusSettings) -> AsyncIterator[object]:
        asked.append(settings)
        if len(asked) < 3:
            raise NodeNotReadyError
        yield object()

    async def reached(_: BusSettings) -> None: ...

    async def describe(_: object) -> topics.ClusterTopics:
        return topics.ClusterTopics({"railbus.streams": 4}, frozenset())

    monkeypatch.setattr(topics, "wait_for_broker", reached)
    monkeypatch.setattr(topics, "_admin", admin)
    monkeypatch.setattr(topics, "_describe", describe)
    assert await topics.partition_counts(BusSettings()) == {"railbus.streams": 4}


async def test_a_topic_without_a_leader_is_there_and_cannot_be_read() -> None:
    class Admin:
        async def describe_topics(self) -> list[dict[str, Any]]:
            def topic(name: str, *leaders: int) -> dict[str, Any]:
                parts = [{"partition": number, "leader": leader} for number, leader in enumerate(leaders)]
                return {"error_code": 0, "topic": name, "partitions": parts}

            unknown = {"error_code": 3, "topic": "unknown", "partitions": []}
            return [topic(STREAMS.name, 1, -1, 2), topic(DEAD.name, 1), unknown]

    found = await topics._describe(Admin())
    assert found.counts == {STREAMS.name: 3, DEAD.name: 1}
    found.check_leaders([(STREAMS, 0), (STREAMS, 2), (DEAD, 0)])
    with pytest.raises(UserError, match=r"partition 1 of topic railbus\.streams has no leader: start the brokers"):
        found.check_leaders([(STREAMS, number) for number in range(3)])
    assert await topics._led_counts(Admin()) == {DEAD.name: 1}


class Admin:
    """A simulated admin client of a cluster that has the topics ``there``.

    Args:
        there: Each topic's name, with the leader of each partition; -1 if it has none. Each request to describe topics
            takes one item, until only one is left.
        new_leader: The leader of the partitions of new topics.
    """

    def __init__(self, *there: dict[str, list[int]], brokers: int = 1, new_leader: int = 1) -> None:
        self._there = list(there)
        self._brokers = brokers
        self._new_leader = new_leader
        self._client = self
        self.cluster = SimpleNamespace(controller=1)
        self.elects_controller = False
        self.created: list[str] = []

    async def describe_topics(self) -> list[dict[str, Any]]:
        there = self._there.pop(0) if len(self._there) > 1 else self._there[0]
        return [
            {
                "error_code": 0,
                "topic": name,
                "partitions": [{"partition": number, "leader": leader} for number, leader in enumerate(leaders)],
            }
            for name, leaders in there.items()
        ]

    async def describe_cluster(self) -> dict[str, Any]:
        return {"brokers": [object()] * self._brokers}

    async def force_metadata_update(self) -> None:
        if self.elects_controller:
            self.cluster.controller = 1

    async def create_topics(self, new: list[Any]) -> Any:
        assert self.cluster.controller is not None
        self.created += [topic.name for topic in new]
        self._there[-1] |= {topic.name: [self._new_leader] * topic.num_partitions for topic in new}
        return SimpleNamespace(topic_errors=[])


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Leave out the requests about settings of topics. Return the copies that topics were compared with."""
    compared: list[object] = []

    async def compare(_: object, expected: object, __: object) -> None:
        compared.append(expected)

    async def nothing(*_: object) -> None: ...

    monkeypatch.setattr(topics, "wait_for_broker", nothing)
    monkeypatch.setattr(topics, "use_log_append_time", nothing)
    monkeypatch.setattr(topics, "_replications", nothing)
    monkeypatch.setattr(topics, "warn_of_fewer_copies", compare)
    return compared


def use(monkeypatch: pytest.MonkeyPatch, *admins: Admin | Exception) -> None:
    """Make each new admin client the next of these; the last one is used again. An exception is raised."""
    left = list(admins)

    @asynccontextmanager
    async def admin(_: BusSettings) -> AsyncIterator[Admin]:
        found = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(found, Exception):
            raise found
        yield found

    monkeypatch.setattr(topics, "_admin", admin)


@pytest.mark.usefixtures("warned")
async def test_an_existing_topic_without_a_leader_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    without, led = {STREAMS.name: [1, -1]}, {STREAMS.name: [1, 1]}
    admin = Admin(without, without, without, without, led)
    use(monkeypatch, admin)
    await topics.ensure_topics(BusSettings(partitions=2), [STREAMS])
    assert admin.created == []
    assert admin._there == [led]


@pytest.mark.usefixtures("warned")
async def test_a_new_topic_that_gets_no_leader_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = Admin({}, new_leader=-1)
    use(monkeypatch, admin)
    monkeypatch.setattr(topics, "READY_TRIES", 2)
    with pytest.raises(UserError, match=r"topic railbus\.dead was created but no leader was elected"):
        await topics.ensure_topics(BusSettings(), [DEAD])


async def test_brokers_that_are_away_need_no_other_setting(
    monkeypatch: pytest.MonkeyPatch, warned: list[object]
) -> None:
    settings = BusSettings(min_insync_replicas=2)
    use(monkeypatch, Admin({DEAD.name: [1]}))
    await topics.ensure_topics(settings, [DEAD])
    assert warned == []
    use(monkeypatch, Admin({DEAD.name: [1]}, brokers=3))
    await topics.ensure_topics(settings, [DEAD])
    assert warned == [(3, 2)]
    use(monkeypatch, Admin({}))
    with pytest.raises(UserError, match="a topic gets 1 here"):
        await topics.ensure_topics(settings, [DEAD])


@pytest.mark.usefixtures("warned")
@pytest.mark.parametrize(("brokers", "expected"), [(1, 1), (2, 2), (4, 3)])
async def test_brokers_are_counted_again_until_they_answer(
    monkeypatch: pytest.MonkeyPatch, brokers: int, expected: int
) -> None:
    use(monkeypatch, NodeNotReadyError(), OSError(), Admin({}, brokers=brokers))
    assert await topics.wanted_replication(BusSettings(min_insync_replicas=2)) == expected


@pytest.mark.usefixtures("warned")
async def test_topics_are_created_once_there_is_a_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    electing, elected = Admin({}), Admin({})
    electing.cluster.controller = elected.cluster.controller = None
    elected.elects_controller = True
    use(monkeypatch, electing, elected)
    await topics.ensure_topics(BusSettings(), [DEAD])
    assert (electing.created, elected.created) == ([], [DEAD.name])


def metadata(host: str) -> MetadataResponse_v1:
    return MetadataResponse_v1([(1, host, 9092, None)], 1, [])


@pytest.mark.parametrize(("bootstrap", "away"), [("boot:9092", 0), ("boot:9092,old:9092", 1)])
async def test_a_broker_that_left_the_cluster_is_not_away(bootstrap: str, away: int) -> None:
    client, before = AIOKafkaClient(bootstrap_servers=bootstrap), BROKER_AWAY._value.get()

    async def no_connection(*_: Any, **__: Any) -> None: ...

    client._get_conn = no_connection
    clients.report_health(client, BusSettings(bootstrap=bootstrap))
    client.cluster.update_metadata(metadata("old"))
    await client._get_conn(1)
    client.cluster.update_metadata(metadata("old"))
    assert BROKER_AWAY._value.get() == before + 1
    client.cluster.update_metadata(metadata("new"))
    assert BROKER_AWAY._value.get() == before + away
    broker_health.health_of("old", 9092).forget()


def test_a_broker_that_crashed_is_away_for_an_hour() -> None:
    settings, before = BusSettings(bootstrap="boot:9092"), BROKER_AWAY._value.get()
    broker_health.health_of_node(settings, 2, ("two", 9092)).mark_unreachable("connection failed")
    others = {1: ("one", 9092)}
    for now_s, away in [(0.0, 1), (broker_health.GONE_S - 1, 1), (broker_health.GONE_S, 0)]:
        broker_health.forget_gone_nodes(settings, others, now_s)
        assert BROKER_AWAY._value.get() == before + away


def test_a_broker_that_is_listed_again_has_not_left() -> None:
    settings, before = BusSettings(bootstrap="boot:9092"), BROKER_AWAY._value.get()
    health = broker_health.health_of_node(settings, 2, ("two", 9092))
    health.mark_unreachable("connection failed")
    for now_s, listed in [(0.0, {}), (1.0, {2: ("two", 9092)}), (broker_health.GONE_S, {})]:
        broker_health.forget_gone_nodes(settings, listed, now_s)
        assert BROKER_AWAY._value.get() == before + 1
    health.forget()


async def test_brokers_whose_addresses_all_changed_are_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Bootstrap:
        closed = False

        async def send(self, _request: Any) -> MetadataResponse_v1:
            return metadata("new")

        def close(self) -> None:
            self.closed = True

    conn = Bootstrap()

    async def connect(_settings: BusSettings, host: str, _port: int, **_: Any) -> Bootstrap:
        if host == "boot-1":
            raise ConnectionRefusedError
        return conn

    async def nobody_answers(*_: Any) -> bool:
        return False

    client = AIOKafkaClient(bootstrap_servers="boot-1:9092,boot-2:9092")
    client._metadata_update = nobody_answers
    monkeypatch.setattr(clients, "connect", connect)
    clients.find_moved_brokers(client, BusSettings(bootstrap="boot-1:9092,boot-2:9092"))
    client.cluster.update_metadata(metadata("old"))
    assert await client._metadata_update(client.cluster, {"railbus.streams"})
    assert client.cluster.broker_metadata(1).host == "new"
    assert conn.closed
