"""Test that batch requests wait in order of arrival, and never use more than their share of an edge's streams."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.edge.errors import ApiError
from services.edge.requests.batch_room import BATCH_SHARE, BatchRoom

STEPS = st.lists(st.tuples(st.sampled_from(["come", "leave", "open", "end", "other", "other_ends"]), st.integers(0, 9)))


@given(most=st.integers(1, 6), steps=STEPS)
def test_places_are_given_in_order_and_none_is_lost(most: int, steps: list[tuple[str, int]]) -> None:
    async def play() -> None:
        others = 0
        opened: set[asyncio.Task[object]] = set()
        room = BatchRoom(most, lambda: len(opened) + others)
        came: list[asyncio.Task[object]] = []
        share = max(1, int(most * BATCH_SHARE))
        for what, pick in steps:
            waiting = [task for task in came if not task.done()]
            placed = [task for task in came if task.done()]
            if what == "come" and len(waiting) < most:
                came.append(asyncio.ensure_future(room.take()))
            elif what == "leave" and waiting:
                task = waiting[pick % len(waiting)]
                task.cancel()
                came.remove(task)
            elif what == "open" and placed:
                task = placed[pick % len(placed)]
                opened.add(task)
                (await task).open()  # type: ignore[attr-defined]
            elif what == "end" and placed:
                task = placed[pick % len(placed)]
                came.remove(task)
                opened.discard(task)
                place = await task
                place.release()  # type: ignore[attr-defined]
                place.release()  # type: ignore[attr-defined]
            elif what == "other" and others + room.taken < most:
                others += 1
            elif what == "other_ends" and others:
                others -= 1
                room.admit()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            done = [task.done() for task in came]
            assert done == sorted(done, reverse=True), "first come, first served"
            assert room.taken == sum(done) <= share
            assert room.waiting == len(done) - sum(done)
            assert room.taken + others <= most, "each place is for one stream"
            assert not room.waiting or room.taken == share or room.taken + others >= most, "nobody waits for nothing"
        for task in came:
            task.cancel()

    asyncio.run(play())


async def test_a_client_that_leaves_as_it_gets_its_place_gives_it_back() -> None:
    room = BatchRoom(1, lambda: 0)
    place = await room.take()
    second = asyncio.ensure_future(room.take())
    await asyncio.sleep(0)
    place.release()  # the second has the place now, and does not know it yet
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    assert (room.taken, room.waiting) == (0, 0)


async def test_a_place_says_whether_it_was_waited_for() -> None:
    room = BatchRoom(1, lambda: 0)
    place = await room.take()
    second = asyncio.ensure_future(room.take())
    await asyncio.sleep(0)
    place.release()
    assert (place.waited, (await second).waited) == (False, True)


async def test_more_than_may_wait_are_refused() -> None:
    room = BatchRoom(1, lambda: 0)
    await room.take()
    waiting = asyncio.ensure_future(room.take())
    await asyncio.sleep(0)
    with pytest.raises(ApiError, match="Too many batch requests wait"):
        await room.take()
    waiting.cancel()


async def test_one_place_that_is_given_back_lets_in_one() -> None:
    room = BatchRoom(4, lambda: 0)
    places = [await room.take() for _ in range(3)]
    waiting = [asyncio.ensure_future(room.take()) for _ in range(3)]
    await asyncio.sleep(0)
    places[0].release()
    await asyncio.sleep(0)
    assert [task.done() for task in waiting] == [True, False, False]
    assert room.taken == 3
    for task in waiting:
        task.cancel()


async def test_a_place_counts_before_its_stream_is_open() -> None:
    streams = 2  # interactive ones
    room = BatchRoom(4, lambda: streams)
    places = [await room.take() for _ in range(2)]
    third = asyncio.ensure_future(room.take())
    await asyncio.sleep(0)
    assert (room.taken, room.waiting) == (2, 1)
    streams += 1
    places[0].open()
    room.admit()
    assert (room.taken, room.waiting) == (2, 1)
    streams -= 1
    room.admit()  # an interactive stream has ended
    await third
    assert room.taken == 3
