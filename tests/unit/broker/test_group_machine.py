"""Test what must hold for a consumer group, whatever its clients do and whenever they do it."""

import itertools
from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from services.broker.groups.group import ConsumerGroup
from services.broker.groups.members import (
    AssignmentProtocol,
    GroupState,
    JoinRequest,
    JoinResponse,
    SyncRequest,
    SyncResponse,
)
from services.broker.protocol.error_codes import ErrorCode
from tests.support.examples import examples

PARTITIONS = frozenset(range(6))
SESSION_MS = 10_000
REBALANCE_MS = 20_000


@dataclass
class Client:
    """A simulated consumer that behaves as clients do: it joins, syncs, sends heartbeats, and rejoins when told to."""

    instance: str | None
    id_required: bool
    metadata: bytes = b"topics"
    member_id: str = ""
    generation: int = -1
    leads: bool = False
    peers: list[str] = field(default_factory=list)
    waiting: int | None = None
    owns: frozenset[int] | None = None
    alive: bool = True

    def reset(self) -> None:
        self.generation, self.leads, self.owns = -1, False, None


def plan(peers: list[str]) -> dict[str, bytes]:
    return {peer: bytes(sorted(PARTITIONS))[index :: len(peers)] for index, peer in enumerate(peers)}


class Groups(RuleBasedStateMachine):
    clients = Bundle("clients")

    def __init__(self) -> None:
        super().__init__()
        self.group = ConsumerGroup("g", initial_delay_ms=50)
        self.now = 0
        self.everyone: list[Client] = []
        self.asked: dict[int, Client | None] = {}
        self.numbers = itertools.count(1)
        self.highest = 0
        self.told: dict[int, tuple[str, str]] = {}

    # What clients do

    @rule(target=clients, instance=st.sampled_from([None, None, "a", "b"]), id_required=st.booleans())
    def start(self, instance, id_required):
        client = Client(instance, id_required)
        self.everyone.append(client)
        self.join(client)
        return client

    @rule(client=clients)
    def join(self, client):
        if not client.alive or client.waiting:
            return
        client.reset()
        ticket = client.waiting = next(self.numbers)
        self.asked[ticket] = client
        asked = JoinRequest(
            member_id=client.member_id,
            instance_id=client.instance,
            client_id="c",
            client_host="h",
            session_ms=SESSION_MS,
            rebalance_ms=REBALANCE_MS,
            protocol_type="consumer",
            protocols=(AssignmentProtocol("range", client.metadata),),
            id_required=client.id_required,
        )
        self.take(self.group.join(asked, ticket, f"m{ticket}", self.now))

    @rule(client=clients)
    def sync(self, client):
        if not client.alive or client.waiting or client.generation < 0:
            return
        ticket = client.waiting = next(self.numbers)
        self.asked[ticket] = client
        asked = SyncRequest(
            member_id=client.member_id,
            instance_id=client.instance,
            generation=client.generation,
            assignments=plan(client.peers) if client.leads else {},
        )
        self.take(self.group.sync(asked, ticket, self.now))

    @rule(client=clients)
    def beat(self, client):
        if client.alive and client.generation >= 0:
            self.obey(client, self.group.heartbeat(client.member_id, client.instance, client.generation, self.now))

    @rule(client=clients)
    def subscribe_anew(self, client):
        client.metadata += b"+"

    @rule(client=clients)
    def leave(self, client):
        if client.alive and not client.waiting:
            code, answers = self.group.leave(client.member_id, client.instance, self.now)
            client.member_id = ""
            client.reset()
            self.take(answers)
            assert code in {ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID}

    @rule(client=clients)
    def die(self, client):
        client.alive = False
        client.owns = None
        if client.waiting:
            self.asked[client.waiting] = None

    @rule(client=clients, generation=st.integers(-1, 3))
    def speak_out_of_turn(self, client, generation):
        """Send a heartbeat with a wrong generation, as a zombie may do. The group must refuse it and stay as it was."""
        if generation != self.group.generation:
            state = self.group.state
            code = self.group.heartbeat(client.member_id, client.instance, generation, self.now)
            assert code is not ErrorCode.NONE
            assert self.group.state is state

    @rule(ms=st.sampled_from([0, 1, 50, 3_000, 9_999, 10_000, 20_000]))
    def wait(self, ms):
        self.now += ms
        self.take(self.group.tick(self.now))

    # What they are answered

    def take(self, answers):
        for answer in answers:
            client = self.asked.pop(answer.ticket)  # fails when something is answered twice
            if client is None:
                continue
            client.waiting = None
            if answer.code is not ErrorCode.NONE:
                client.member_id = answer.member_id if answer.code is ErrorCode.MEMBER_ID_REQUIRED else client.member_id
                self.obey(client, answer.code)
            elif isinstance(answer, JoinResponse):
                self.joined(client, answer)
            else:
                assert isinstance(answer, SyncResponse)
                client.owns = frozenset(answer.assignment)

    def joined(self, client: Client, answer: JoinResponse):
        client.member_id, client.generation = answer.member_id, answer.generation
        client.leads = answer.leader == answer.member_id
        client.peers = [peer.member_id for peer in answer.peers]
        assert (client.member_id in client.peers) == client.leads
        assert len(set(client.peers)) == len(client.peers)

    @staticmethod
    def obey(client: Client, code: ErrorCode):
        if code is ErrorCode.FENCED_INSTANCE_ID:
            client.alive = False
        if code in {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID}:
            client.member_id = ""
        if code is not ErrorCode.NONE:
            client.reset()

    # What must hold

    @invariant()
    def generations_only_grow(self):
        assert self.group.generation >= self.highest
        self.highest = self.group.generation

    @invariant()
    def nobody_shares_a_partition(self):
        if self.group.state is not GroupState.STABLE:
            return
        members = {member.id for member in self.group.members}
        owners = {
            client.member_id: client.owns
            for client in self.everyone
            if client.owns and client.generation == self.group.generation and client.member_id in members
        }
        owned = [partition for owns in owners.values() for partition in owns]
        assert len(owned) == len(set(owned))

    @invariant()
    def the_leader_is_a_member(self):
        if self.group.state in {GroupState.COMPLETING, GroupState.STABLE}:
            assert self.group.leader in {member.id for member in self.group.members}
        assert (self.group.state is GroupState.EMPTY) <= (len(self.group.members) == 0)

    @invariant()
    def somebody_looks_at_the_clock(self):
        assert (self.group.next_deadline_ms() is None) == self.group.idle

    def teardown(self):
        """Let the living clients follow the protocol for 36 s. Then check that the group has settled.

        Each request of a living client must be answered, and each partition must have one owner.
        """
        for _ in range(12):
            for client in self.everyone:
                self.beat(client)
                if client.alive and client.generation < 0:
                    self.join(client)
                elif client.alive and client.owns is None:
                    self.sync(client)
            self.wait(3_000)
        assert not [client for client in self.asked.values() if client is not None], "somebody was never answered"
        alive = [client for client in self.everyone if client.alive]
        owned = sorted(partition for client in alive for partition in client.owns or ())
        assert owned == (sorted(PARTITIONS) if alive else [])
        assert len(self.group.members) == len(alive)


TestGroups = Groups.TestCase
TestGroups.settings = settings(
    max_examples=examples(200), stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
