import asyncio

import pytest

from services.bus import Room


async def test_waits_while_full_and_goes_on_at_once() -> None:
    room = Room(2)
    room.take(2)
    waiting = asyncio.create_task(room.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    room.give()
    await asyncio.sleep(0)
    assert waiting.done()
    assert room.free == 1


async def test_places_taken_beyond_the_limit_must_come_back_first() -> None:
    room = Room(1)
    room.take(3)
    assert room.free == -2
    waiting = asyncio.create_task(room.wait())
    await asyncio.sleep(0)
    room.give(2)
    await asyncio.sleep(0)
    assert not waiting.done()
    room.give()
    await waiting


def test_giving_more_than_was_taken_is_an_error() -> None:
    room = Room(1)
    with pytest.raises(ValueError, match="more places were given back"):
        room.give()


def test_needs_a_place() -> None:
    with pytest.raises(ValueError, match="at least one place"):
        Room(0)
