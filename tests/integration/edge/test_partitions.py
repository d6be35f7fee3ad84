"""Which partitions an edge follows: its homes for good, others as long as a request there needs it."""

import asyncio
from contextlib import AsyncExitStack

from schemas.topics import STREAMS
from services.bus import partition_for
from services.edge.hub import Hub
from services.edge.partitions import Partitions
from tests.integration.edge.stage import PARTITIONS, PATIENCE_S, deltas


async def until(condition):
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - nobody tells when
            await asyncio.sleep(0.01)


async def test_a_guest_is_followed_as_long_as_somebody_needs_it(stage):
    edges = [Partitions(stage.bus, Hub(), instance=f"edge{number}", static_id=None) for number in range(2)]
    tasks = [asyncio.create_task(edge.run()) for edge in edges]
    try:
        await until(lambda: all(edge.homes for edge in edges) and not edges[0].homes & edges[1].homes)
        edge = edges[0]

        def followed():
            return {number for number in range(PARTITIONS) if edge._tail.position(STREAMS, number) is not None}

        await until(lambda: followed() == edge.homes)  # what went to the other edge is no longer read here
        guest = min(edges[1].homes)
        holds = await asyncio.gather(edge.hold(guest), edge.hold(guest))
        assert followed() == edge.homes | {guest}
        holds[0].release()
        await asyncio.sleep(0.1)
        assert followed() == edge.homes | {guest}
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


async def test_streams_go_on_where_they_are_when_another_edge_gets_their_partition(stage):
    first = await stage.edge()
    ours = stage.edges[first]._partitions
    async with AsyncExitStack() as stack:
        clients, writers, living = [], [], set()
        while len(living) < PARTITIONS:
            clients.append(await stack.enter_async_context(stage.listening(first)))
            writers.append(await stage.taken())
            await stage.say(writers[-1].started(), writers[-1].chunk("one "))
            await clients[-1].until(b"one")
            living.add(partition_for(writers[-1].request_id, PARTITIONS))
        theirs = stage.edges[await stage.edge()]._partitions
        await until(lambda: not ours.homes & theirs.homes)
        await asyncio.sleep(0.1)
        for writer in writers:
            await stage.say(writer.chunk("two"), writer.finished(), writer.closed())
        for client in clients:
            assert deltas(await client.rest()) == "one two"
    await until(lambda: ours._plan.followed == ours.homes)  # and nothing is read for streams that are over
