"""Simulated coordinator of a consumer group: joins, rebalances, expulsion and committed offsets."""

from collections.abc import Callable
from typing import Protocol

from services.bus.groups.assignor import OwnedPartitions, sticky_assignment
from services.bus.records import Partition
from services.simulator.kafka.broker import PARTITIONS
from services.simulator.kafka.hosts import SimulatedProcess
from services.simulator.simulation import MS, Simulation

SESSION_TIMEOUT_US = 1_500 * MS
HEARTBEAT_US = 300 * MS


class GroupMember(Protocol):
    process: SimulatedProcess
    member_id: str
    generation: int

    @property
    def owned(self) -> OwnedPartitions: ...
    def on_expelled(self) -> None: ...
    def on_rebalance(self) -> None: ...
    def on_assigned(self, generation: int, numbers: list[int]) -> None: ...


class SimulatedGroup:
    """The coordinator of one consumer group.

    Attributes:
        on_commit: Called with group, partition and offset before each commit is stored.
    """

    def __init__(self, simulation: Simulation, name: str) -> None:
        self.name = name
        self.committed: dict[Partition, int] = {}
        self.on_commit: Callable[[str, Partition, int], None] | None = None
        self.rebalances = 0
        self._simulation = simulation
        self._members: dict[str, GroupMember] = {}
        self._joined: dict[str, OwnedPartitions] = {}
        self._generation = 0
        self._joining = False
        self._round = 0
        self._names = 0
        self._silent: dict[str, int] = {}
        """For each member, a number that changes when its heartbeats stop and when they start again.

        A planned expulsion is dropped if the number has changed.
        """

    def join(self, member: GroupMember, owned: OwnedPartitions) -> None:
        """Process a join request. The assignment follows when every member has joined, left or been expelled."""
        if not member.process.alive:
            return
        if member.member_id not in self._members:
            self._names += 1
            member.member_id = f"{self.name}-{self._names:04}"
            self._members[member.member_id] = member
        if not self._joining:
            self._rebalance()
        self._joined[member.member_id] = owned
        self._complete()

    def leave(self, member: GroupMember) -> None:
        if self._members.pop(member.member_id, None) is not None:
            self._joined.pop(member.member_id, None)
            self._rebalance()
            self._complete()

    def heartbeat(self, member: GroupMember) -> None:
        """Call the member's ``on_expelled`` if it was expelled, or its ``on_rebalance`` if it must join again."""
        if self._members.get(member.member_id) is not member:
            member.process.fire(member.on_expelled)
        elif self._joining and member.member_id not in self._joined:
            member.process.fire(member.on_rebalance)

    def commit(self, member: GroupMember, generation: int, positions: dict[Partition, int]) -> bool:
        """Store offsets. Return False, and store nothing, if the member is not in the current generation."""
        if self._members.get(member.member_id) is not member or generation != self._generation:
            return False
        for partition, position in positions.items():
            if self.on_commit is not None:
                self.on_commit(self.name, partition, position)
            self.committed[partition] = position
        return True

    def watch(self, member: GroupMember) -> None:
        """Expel the member after the session timeout, unless ``hear`` is called first."""
        silence = self._silent[member.member_id] = self._silent.get(member.member_id, 0) + 1
        delay_us = SESSION_TIMEOUT_US - self._simulation.between(0, HEARTBEAT_US)
        self._simulation.after(delay_us, self._expire, member, member.member_id, silence)

    def hear(self, member: GroupMember) -> None:
        """Cancel the expulsion that ``watch`` planned, because the member can reach the broker again."""
        self._silent[member.member_id] = self._silent.get(member.member_id, 0) + 1
        self.tell_soon(member)

    def tell_soon(self, member: GroupMember) -> None:
        self._simulation.after(self._simulation.between(0, HEARTBEAT_US), self._beat, member)

    def _beat(self, member: GroupMember) -> None:
        if self._simulation.away:
            self.tell_soon(member)
        elif member.process.reachable:
            self.heartbeat(member)

    def _expire(self, member: GroupMember, member_id: str, silence: int) -> None:
        if self._simulation.away:  # a broker that is reachable again starts the session timeouts anew
            self._simulation.after(SESSION_TIMEOUT_US, self._expire, member, member_id, silence)
            return
        if self._silent.get(member_id) != silence or self._members.get(member_id) is not member:
            return
        self._simulation.note(self.name, f"expels {member.process.name}")
        del self._members[member_id]
        self._joined.pop(member_id, None)
        self._rebalance()
        self._complete()

    def _rebalance(self) -> None:
        self._round += 1
        if not self._joining:
            self._joining = True
            self._joined.clear()
        for member in self._members.values():
            if member.member_id not in self._joined:
                self.tell_soon(member)
        self._simulation.after(SESSION_TIMEOUT_US, self._give_up_waiting, self._round)

    def _give_up_waiting(self, number: int) -> None:
        if self._simulation.away:
            self._simulation.after(SESSION_TIMEOUT_US, self._give_up_waiting, number)
            return
        if not self._joining or number != self._round:
            return
        for member_id in [each for each in self._members if each not in self._joined]:
            del self._members[member_id]
        self._complete()

    def _complete(self) -> None:
        if not self._joining or not self._members or len(self._joined) < len(self._members):
            return
        self._joining = False
        self._generation += 1
        self.rebalances += 1
        owned, self._joined = self._joined, {}
        leader = self._members[min(owned)]
        leader.process.ask(self._lead, leader, self._generation, owned)

    def _lead(self, leader: GroupMember, generation: int, owned: dict[str, OwnedPartitions]) -> None:
        leader.process.fire(self._assign, generation, owned)

    def _assign(self, generation: int, owned: dict[str, OwnedPartitions]) -> None:
        if self._joining or generation != self._generation:
            return
        shares = sticky_assignment(range(PARTITIONS), owned)
        for member_id in sorted(shares):
            member = self._members.get(member_id)
            if member is not None:
                member.process.ask(self._answer, member, generation, sorted(shares[member_id]))

    def _answer(self, member: GroupMember, generation: int, numbers: list[int]) -> None:
        member.process.fire(member.on_assigned, generation, numbers)
