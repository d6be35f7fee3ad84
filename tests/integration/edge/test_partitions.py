"""Test that an edge always follows its home partitions, and follows another partition only while a stream needs it."""

import asyncio
from contextlib import AsyncExitStack

from schemas.topics import STREAMS
from services.bus import partition_for
from services.edge.delivery.hub import Hub
from services.edge.log.partition_follower import PartitionFollower
from tests.integration.edge.lab import PARTITIONS, deltas
from tests.support.waiting import until


async def test_another_partition_is_followed_while_a_stream_holds_it(lab):
    hub = Hub()
    edges = [
        PartitionFollower(lab.bus, handler=hub.handle, wants=hub.wants, instance=f"edge{number}", static_id=None)
        for number in range(2)
    ]
    tasks = [asyncio.create_task(edge.run()) for edge in edges]
    try:
        await until(lambda: all(edge.homes for edge in edges) and not edges[0].homes & edges[1].homes)
        edge = edges[0]

        def followed():
            return {number for number in range(PARTITIONS) if edge._tail.position(STREAMS, number) is not None}

        await until(lambda: followed() == edge.homes)  # this edge stops reading what moved to the other
        other = min(edges[1].homes)
        holds = await asyncio.gather(edge.hold(other), edge.hold(other))
        assert followed() == edge.homes | {other}
        holds[0].release()
        await asyncio.sleep(0.1)
        assert followed() == edge.homes | {other}
        holds[1].release()
        await until(lambda: followed() == edge.homes)
        home = min(edge.homes)
        (await edge.hold(home)).release()
        await asyncio.sleep(0.1)
        assert followed() == edge.homes
        assert await edge.reachable()
        edge.retire()
        assert not await edge.reachable()
        assert home in followed()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_streams_continue_when_another_edge_gets_their_partition(lab):
    first = await lab.edge()
    ours = lab.edges[first]._partitions
    async with AsyncExitStack() as stack:
        clients, writers, living = [], [], set()
        while len(living) < PARTITIONS:
            clients.append(await stack.enter_async_context(lab.open_stream(first)))
            writers.append(await lab.next_writer())
            await lab.write(writers[-1].started(), writers[-1].chunk("one "))
            await clients[-1].until(b"one")
            living.add(partition_for(writers[-1].request_id, PARTITIONS))
        theirs = lab.edges[await lab.edge()]._partitions
        await until(lambda: not ours.homes & theirs.homes)
        await asyncio.sleep(0.1)
        for writer in writers:
            await lab.write(writer.chunk("two"), writer.finished(), writer.closed())
        for client in clients:
            assert deltas(await client.rest()) == "one two"
    await until(lambda: ours._plan.followed == ours.homes)  # ended streams hold nothing
