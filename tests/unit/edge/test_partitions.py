"""Test ``FollowPlan``, which decides which partitions an edge reads, and ``PartitionFollower``, which reads them."""

import asyncio

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from schemas.topics import STREAMS
from services.bus import Assignment, BusSettings, partition_for
from services.edge.delivery.hub import Hub
from services.edge.log.follow_plan import FollowPlan
from services.edge.log.partition_follower import PartitionFollower

NUMBERS = st.integers(0, 5)


class Following(RuleBasedStateMachine):
    """A Hypothesis state machine that tests ``FollowPlan`` with steps in any order.

    A step assigns home partitions, holds or releases a partition for a stream, or starts or stops reading a partition.
    """

    def __init__(self):
        super().__init__()
        self.plan = FollowPlan()
        self.held = []
        self.secured = set()
        """Partitions that are held and read: reading must not end before the hold does."""
        self.retired = False

    @rule(wanted=st.frozensets(NUMBERS, min_size=1))
    def assign(self, wanted):
        self.plan.assign(wanted)

    @precondition(lambda self: self.plan.missing())
    @rule(data=st.data())
    def follow_home(self, data):
        self.plan.followed.add(data.draw(st.sampled_from(sorted(self.plan.missing()))))

    @rule()
    def switch_homes(self):
        before = self.plan.homes
        assert self.plan.switch_homes() == (self.plan.homes != before)

    @precondition(lambda self: self.plan.homes)
    @rule(data=st.data())
    def ask(self, data):
        self.held.append(data.draw(st.sampled_from(sorted(self.plan.homes))))
        self.plan.hold(self.held[-1])
        self.secured.add(self.held[-1])

    @rule(partition=NUMBERS, fails=st.booleans())
    def resume(self, partition, fails):
        self.plan.hold(partition)
        if fails and partition not in self.plan.followed:
            self.plan.release(partition)
            return
        self.plan.followed.add(partition)
        self.held.append(partition)
        self.secured.add(partition)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data):
        partition = data.draw(st.sampled_from(self.held))
        self.held.remove(partition)
        self.plan.release(partition)
        if partition not in self.held:
            self.secured.discard(partition)

    @precondition(lambda self: self.plan.unneeded())
    @rule(data=st.data())
    def unfollow(self, data):
        self.plan.followed.discard(data.draw(st.sampled_from(sorted(self.plan.unneeded()))))

    @rule()
    def retire(self):
        self.plan.retire()
        self.retired = True

    @invariant()
    def homes_are_followed(self):
        assert self.plan.homes <= self.plan.followed
        assert not (self.retired and self.plan.homes)

    @invariant()
    def what_a_stream_holds_is_followed(self):
        assert self.secured <= self.plan.followed
        assert not self.plan.unneeded() & set(self.held)


TestFollowing = Following.TestCase


def test_without_holds_only_homes_are_followed():
    plan = FollowPlan()
    plan.assign(frozenset({1, 2}))
    assert (plan.missing(), plan.switch_homes(), plan.homes) == ({1, 2}, False, frozenset())
    plan.followed |= {1, 2, 3}
    assert plan.switch_homes()
    assert not plan.switch_homes()
    assert plan.unneeded() == {3}
    plan.hold(1)
    plan.assign(frozenset({2}))
    assert plan.unneeded() == {3}  # 1 is a home until the switch
    assert plan.switch_homes()
    assert plan.unneeded() == {3}  # and held by a stream after that
    plan.release(1)
    assert plan.unneeded() == {1, 3}


class Tail:
    """A simulated ``TailReader``. Each call yields to the event loop, and waits while ``gate`` is not set."""

    def __init__(self):
        self.steps = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def follow(self, topic, partition, start):
        assert (topic, start) == (STREAMS, "end")
        await self.gate.wait()
        await asyncio.sleep(0)
        self.steps.append(f"follow {partition}")

    async def unfollow(self, topic, partition):
        self.steps.append(f"unfollow {partition}")
        await asyncio.sleep(0)
        await self.gate.wait()


@pytest.fixture
async def partitions():
    hub = Hub()
    it = PartitionFollower(
        BusSettings(partitions=4), handler=hub.handle, wants=hub.wants, instance="edge", static_id=None
    )
    it._tail = Tail()
    task = asyncio.create_task(it._update_homes())
    yield it
    task.cancel()
    await asyncio.wait({task})


def assign(partitions, *numbers):
    held = frozenset(("railbus.streams", number) for number in numbers)
    partitions._assigned(Assignment(held, gained=held, lost=frozenset()))


async def turns():
    for _ in range(50):
        await asyncio.sleep(0)


async def test_a_new_request_holds_its_partition_from_its_id_on(partitions):
    assign(partitions, 1)
    await partitions.homes_ready.wait()
    request_id, hold = partitions.reserve_request_id(1_763_700_000_000)
    assert hold.partition == partition_for(request_id, 4) == 1
    assign(partitions, 2)
    await turns()
    assert partitions.homes == {2}
    assert partitions._tail.steps == ["follow 1", "follow 2"]
    hold.release()
    hold.release()  # no effect the second time
    await turns()
    assert partitions._tail.steps == ["follow 1", "follow 2", "unfollow 1"]


async def test_without_homes_no_request_id_is_reserved(partitions):
    assert partitions.reserve_request_id(1) is None
    assign(partitions, 1)
    await partitions.homes_ready.wait()
    partitions.retire()
    assert partitions.reserve_request_id(1) is None
    assign(partitions, 1, 2)  # a stopping edge stays a member until its streams are over
    await turns()
    assert partitions.homes == frozenset()


async def test_an_edge_without_assigned_partitions_shares_one(partitions):
    assign(partitions)
    await partitions.homes_ready.wait()
    assert len(partitions.homes) == 1


async def test_two_holds_follow_a_partition_once(partitions):
    holds = await asyncio.gather(partitions.hold(3), partitions.hold(3))
    assert partitions._tail.steps == ["follow 3"]
    assign(partitions, 3)
    await turns()
    holds[0].release()
    holds[1].release()
    await turns()
    assert partitions._tail.steps == ["follow 3"]  # home by now


async def test_a_hold_while_a_partition_is_unfollowed_follows_it_again(partitions):
    tail = partitions._tail
    hold = await partitions.hold(3)
    tail.gate.clear()
    hold.release()
    await turns()
    assert tail.steps == ["follow 3", "unfollow 3"]
    holding = asyncio.create_task(partitions.hold(3))
    await turns()
    assert not holding.done()
    tail.gate.set()
    await holding
    assert tail.steps == ["follow 3", "unfollow 3", "follow 3"]


async def test_homes_that_change_while_they_are_followed(partitions):
    tail = partitions._tail
    assign(partitions, 0, 1)
    await partitions.homes_ready.wait()
    tail.gate.clear()
    assign(partitions, 1, 2)
    await turns()
    assign(partitions, 1, 3)
    assert partitions.homes == {0, 1}  # new requests stay in partitions that are read already
    tail.gate.set()
    await turns()
    assert partitions.homes == {1, 3}
    assert partitions._plan.followed == {1, 3}


async def test_a_cancelled_hold_holds_nothing(partitions):
    partitions._tail.gate.clear()
    holding = asyncio.create_task(partitions.hold(3))
    await turns()
    holding.cancel()
    await asyncio.wait({holding})
    partitions._tail.gate.set()
    assign(partitions, 1)
    await turns()
    assert partitions._tail.steps == ["follow 1"]
    assert partitions._plan.followed == {1}
