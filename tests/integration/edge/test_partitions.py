"""Which partitions an edge follows: its homes for good, others as long as a request there needs it."""

import asyncio

from schemas.topics import STREAMS
from services.edge.hub import Hub
from services.edge.partitions import Partitions
from tests.integration.edge.stage import PARTITIONS, PATIENCE_S


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
        await asyncio.gather(edge.hold(guest), edge.hold(guest))
        assert followed() == edge.homes | {guest}
        edge.release(guest)
        await asyncio.sleep(0.1)
        assert followed() == edge.homes | {guest}
        edge.release(guest)
        await until(lambda: followed() == edge.homes)
        home = min(edge.homes)
        await edge.hold(home)
        edge.release(home)
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
