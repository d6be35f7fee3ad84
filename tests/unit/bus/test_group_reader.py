"""Test what a member of a consumer group knows about the broker."""

import asyncio
from types import SimpleNamespace
from typing import Any

from services.bus import BusSettings
from services.bus.groups.group_reader import _Goal, _Session
from services.bus.groups.held_partitions import HeldPartitions
from services.bus.kafka.cluster import Cluster
from services.runtime.clock import steady_us


class Client:
    """A simulated client of aiokafka. It says for each request for metadata whether a broker answers."""

    def __init__(self) -> None:
        self.answers = False
        self.asked = asyncio.Event()

    async def force_metadata_update(self) -> bool:
        self.asked.set()
        return self.answers


async def test_without_partitions_a_member_still_asks_whether_a_broker_answers() -> None:
    session: Any = object.__new__(_Session)
    session.cluster = Cluster(BusSettings(), "test")
    session.cluster.client = client = Client()
    session.has_assignment = True
    session._partitions, session._reader = HeldPartitions(), SimpleNamespace(clock=steady_us)
    reached: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    asking = asyncio.create_task(session._ask_ends(reached, _Goal(frozenset(), wait=True)))
    async with asyncio.timeout(5):
        await client.asked.wait()
        await asyncio.sleep(0.01)
        assert not reached.done(), "the broker is away"
        client.answers = True
        assert await reached
        await asking
