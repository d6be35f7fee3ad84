"""Tests of the first connections to Kafka: nodes that cannot be reached, and nodes that do not know a topic yet."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka.errors import KafkaError, NodeNotReadyError

from schemas.topics import TOPICS
from services.bus import BusSettings
from services.bus.kafka import broker_health, topics
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

    async def counts(_: object) -> dict[str, int]:
        return {"railbus.streams": 4}

    monkeypatch.setattr(topics, "wait_for_broker", reached)
    monkeypatch.setattr(topics, "_admin", admin)
    monkeypatch.setattr(topics, "_partition_counts", counts)
    assert await topics.partition_counts(BusSettings()) == {"railbus.streams": 4}
