import asyncio

import pytest

from services.bus import InFlightLimit


async def test_waits_while_full_and_goes_on_at_once() -> None:
    room = InFlightLimit(2)
    room.acquire(2)
    waiting = asyncio.create_task(room.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    room.release()
    await asyncio.sleep(0)
    assert waiting.done()
    assert room.free == 1


async def test_places_taken_beyond_the_limit_must_come_back_first() -> None:
    room = InFlightLimit(1)
    room.acquire(3)
    assert room.free == -2
    waiting = asyncio.create_task(room.wait())
    await asyncio.sleep(0)
    room.release(2)
    await asyncio.sleep(0)
    assert not waiting.done()
    room.release()
    await waiting


def test_giving_more_than_was_taken_is_an_error() -> None:
    room = InFlightLimit(1)
    with pytest.raises(ValueError, match="more slots were released"):
        room.release()


def test_needs_a_slot() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        InFlightLimit(0)
