"""The nouns of a consumer group: members, what they ask, what they are answered."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from services.broker.codes import Code

Ticket = object  # stands for a request whose answer may come later; only the shell looks inside


class State(Enum):
    """Kafka's own names, as DescribeGroups shows them."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"  # waits for every member to join
    COMPLETING = "CompletingRebalance"  # waits for the leader's assignment
    STABLE = "Stable"


class Protocol(NamedTuple):
    """A way to assign partitions that a member offers, and what it says about itself for it."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """What a member that joins says. Times in milliseconds."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_ms: int
    rebalance_ms: int
    protocol_type: str
    protocols: tuple[Protocol, ...]
    id_required: bool  # the client knows MEMBER_ID_REQUIRED


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """What a member that asks for its assignment says; the leader brings everyone's."""

    member_id: str
    instance_id: str | None
    generation: int
    assignments: Mapping[str, bytes]


class Peer(NamedTuple):
    """A member as its leader is told of it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The answer to a Join."""

    ticket: Ticket
    code: Code = Code.NONE
    generation: int = -1
    protocol: str = ""
    leader: str = ""
    member_id: str = ""
    peers: tuple[Peer, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """The answer to a Sync."""

    ticket: Ticket
    code: Code = Code.NONE
    assignment: bytes = b""


Answer = Joined | Synced


@dataclass(frozen=True, slots=True, kw_only=True)
class StableGroup:
    """A group whose members all have their assignment: what must survive a restart of the broker."""

    generation: int
    protocol: str
    leader: str
    members: tuple[tuple[Join, bytes], ...]  # how each one joined, with the id it has now, and its assignment


@dataclass(slots=True)
class Member:
    """One member of a group."""

    id: str
    join: Join
    deadline_ms: int  # its session ends then, unless it is heard from
    joining: Ticket | None = None  # its JoinGroup that waits
    syncing: Ticket | None = None  # its SyncGroup that waits
    synced: bool = False  # has sent SyncGroup in this generation
    assignment: bytes = b""

    @property
    def waits(self) -> bool:
        """It waits for us, so its session does not run out."""
        return self.joining is not None or self.syncing is not None

    def heard(self, now_ms: int) -> None:
        """It is alive: its session begins anew."""
        self.deadline_ms = now_ms + self.join.session_ms

    def metadata(self, protocol: str | None) -> bytes:
        """What it says about itself for the chosen protocol."""
        return next((offer.metadata for offer in self.join.protocols if offer.name == protocol), b"")

    def dismiss(self, code: Code) -> list[Answer]:
        """What waits for it waits in vain: the answers that say so."""
        answers: list[Answer] = []
        if self.joining is not None:
            answers.append(Joined(ticket=self.joining, code=code, member_id=self.id))
        if self.syncing is not None:
            answers.append(Synced(ticket=self.syncing, code=code))
        self.joining = self.syncing = None
        return answers
