"""Test the memory limit that all request bodies share: which connections are closed, and which bodies wait."""

import asyncio
from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.edge.errors import ApiError
from services.edge.http import body_room
from services.edge.http.body_room import BodyRoom

MOST = 800
IN_WORK = 100

STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "subtract", "forget"]), st.integers(0, 4), st.integers(1, 700)), max_size=60
)


def a_room():
    dropped = []
    return BodyRoom(MOST, dropped.append), dropped


async def let_others_run():
    for _ in range(5):
        await asyncio.sleep(0)


class Worker:
    """A task that waits for its turn to process ``count`` bytes, and then keeps the turn until ``end`` is called."""

    def __init__(self, room, count):
        self.has_turn = False
        self.turn = None
        self._end = asyncio.Event()
        self.task = asyncio.create_task(self._work(room, count))

    async def _work(self, room, count):
        async with room.turn(count) as self.turn:
            self.has_turn = True
            await self._end.wait()

    async def end(self):
        self._end.set()
        await self.task


@given(STEPS)
def test_what_arrives_is_within_the_bound_and_the_oldest_goes(steps):
    room, dropped = a_room()
    expected = OrderedDict()
    for what, key, count in steps:
        gone = []
        if what == "add":
            expected[key] = expected.get(key, 0) + count
            while sum(expected.values()) > MOST:
                oldest = next((other for other in expected if other != key), key)
                del expected[oldest]
                gone.append(oldest)
        elif what == "forget":
            expected.pop(key, None)
        elif key in expected:
            left = expected.pop(key) - count  # the rest of a message that has begun
            if left > body_room.SLACK_BYTES:
                expected[key] = left
        before = len(dropped)
        getattr(room, what)(key, *([] if what == "forget" else [count]))
        assert dropped[before:] == gone
        assert room.total == sum(expected.values()) <= MOST


def test_a_single_one_that_is_too_much_goes_itself():
    room, dropped = a_room()
    room.add("only", MOST + 1)
    assert dropped == ["only"]
    assert room.total == 0


async def test_bodies_take_turns_in_order():
    room, _ = a_room()
    workers = [Worker(room, 60) for _ in range(3)]
    await let_others_run()
    assert [worker.has_turn for worker in workers] == [True, False, False]
    small = Worker(room, 40)  # has room beside the first, and still waits behind the others
    await let_others_run()
    assert not small.has_turn
    await workers[0].end()
    await let_others_run()
    assert [worker.has_turn for worker in workers] == [True, True, False]
    await workers[1].end()
    await let_others_run()
    assert workers[2].has_turn
    assert small.has_turn
    assert room.total == 100
    for worker in (workers[2], small):
        await worker.end()
    assert room.total == 0


async def test_one_that_is_larger_than_the_share_has_its_turn_alone():
    room, _ = a_room()
    large, other = Worker(room, IN_WORK * 3), Worker(room, 1)
    await let_others_run()
    assert (large.has_turn, other.has_turn) == (True, False)
    await large.end()
    await let_others_run()
    assert other.has_turn
    await other.end()


async def test_a_whole_body_displaces_those_that_are_not():
    room, dropped = a_room()
    room.add("slow", 500)
    room.add("quick", 200)
    worker = Worker(room, 300)
    await let_others_run()
    assert worker.has_turn
    assert dropped == ["slow"]
    assert room.total == 500
    await worker.end()


async def test_whole_bodies_beyond_the_bound_are_refused():
    room, _ = a_room()
    first = Worker(room, 500)
    await let_others_run()
    with pytest.raises(ApiError) as refused:
        async with room.turn(400):
            pytest.fail("there was no room")
    assert (refused.value.status, refused.value.code) == (503, "too_many_bytes")
    await first.end()
    assert room.total == 0


async def test_who_waits_too_long_is_refused_and_the_next_ones_turn_comes(monkeypatch):
    monkeypatch.setattr(body_room, "TURN_S", 0.01)
    room, _ = a_room()
    first, second = Worker(room, IN_WORK), Worker(room, IN_WORK)
    with pytest.raises(ApiError) as refused:
        await second.task
    assert refused.value.code == "too_many_bytes"
    third = Worker(room, IN_WORK)
    await let_others_run()
    await first.end()
    await let_others_run()
    assert third.has_turn
    await third.end()
    assert room.total == 0


@pytest.mark.parametrize("admitted_first", [False, True])
async def test_a_client_that_leaves_while_it_waits_gives_its_turn_back(admitted_first):
    room, _ = a_room()
    first, gone, last = (Worker(room, IN_WORK) for _ in range(3))
    await let_others_run()
    if admitted_first:  # its turn has come, and its task has not run since
        await first.end()
    gone.task.cancel()
    await asyncio.gather(gone.task, return_exceptions=True)
    if not admitted_first:
        await first.end()
    await let_others_run()
    assert last.has_turn
    await last.end()
    assert room.total == 0


async def test_who_waits_for_the_log_lets_others_work_and_still_counts():
    room, _ = a_room()
    first, second = Worker(room, IN_WORK), Worker(room, IN_WORK)
    await let_others_run()
    first.turn.end_work()
    first.turn.end_work()  # no effect
    await let_others_run()
    assert second.has_turn
    assert room.total == 2 * IN_WORK
    await first.end()
    third = Worker(room, 1)
    await let_others_run()
    assert not third.has_turn  # the second works
    await second.end()
    await let_others_run()
    assert third.has_turn
    await third.end()
    assert room.total == 0


async def test_who_waits_for_long_lets_others_work_and_has_half_of_the_room():
    room, _ = a_room()
    waiting = [Worker(room, 90) for _ in range(5)]
    for number, worker in enumerate(waiting):
        await let_others_run()
        assert worker.has_turn
        if number < 4:
            worker.turn.set_aside()
            continue
        with pytest.raises(ApiError):
            worker.turn.set_aside()
    assert room.total == 450
    for worker in waiting:
        await worker.end()
    assert room.total == 0
    after = Worker(room, IN_WORK)
    await let_others_run()
    assert after.has_turn
    await after.end()


@pytest.mark.parametrize(("size", "together"), [(1, body_room.TURNS_AT_ONCE), (30_000, 2), (200_000, 1)])
async def test_a_burst_is_begun_a_few_at_a_time(size, together):
    """If ten bodies arrive together, each event loop iteration starts to process at most ``together`` of them."""
    room = BodyRoom(10_000_000, print)
    turn_of, turns_of_loop = {}, 0

    async def work(number):
        async with room.turn(size) as turn:
            turn_of[number] = turns_of_loop
            turn.end_work()

    workers = [asyncio.create_task(work(number)) for number in range(10)]
    while not all(worker.done() for worker in workers):
        turns_of_loop += 1
        await asyncio.sleep(0)
    assert list(turn_of) == list(range(10))
    groups = [sum(turn == each for turn in turn_of.values()) for each in sorted(set(turn_of.values()))]
    assert groups == [together] * (10 // together) + [10 % together] * (10 % together > 0)
    assert room.total == 0
