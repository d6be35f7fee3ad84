"""The data of a consumer group: members, their requests and the responses to them."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from services.broker.protocol.error_codes import ErrorCode

RequestTicket = object  # a request whose response may come later; opaque here


class GroupState(Enum):
    """Kafka's states of a group, as DescribeGroups shows them."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"  # waits for every member to join
    COMPLETING = "CompletingRebalance"  # waits for the leader's assignment
    STABLE = "Stable"


class AssignmentProtocol(NamedTuple):
    """An assignor that a member offers, and the member's metadata for it."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """A JoinGroup request. Times are in milliseconds."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_ms: int
    rebalance_ms: int
    protocol_type: str
    protocols: tuple[AssignmentProtocol, ...]
    id_required: bool  # the client supports MEMBER_ID_REQUIRED


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    """A SyncGroup request. The leader's request contains the assignments of all members."""

    member_id: str
    instance_id: str | None
    generation: int
    assignments: Mapping[str, bytes]


class Peer(NamedTuple):
    """A member, as it is described to the group's leader."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinResponse:
    """The response to a JoinGroup request."""

    ticket: RequestTicket
    code: ErrorCode = ErrorCode.NONE
    generation: int = -1
    protocol: str = ""
    leader: str = ""
    member_id: str = ""
    peers: tuple[Peer, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResponse:
    """The response to a SyncGroup request."""

    ticket: RequestTicket
    code: ErrorCode = ErrorCode.NONE
    assignment: bytes = b""


GroupResponse = JoinResponse | SyncResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class StableGroup:
    """The state of a group whose members all have their assignments. This state survives a restart of the broker."""

    generation: int
    protocol: str
    leader: str
    members: tuple[tuple[JoinRequest, bytes], ...]  # JoinGroup request, with current member id, and assignment


@dataclass(slots=True)
class MemberMetadata:
    """One member of a group."""

    id: str
    join: JoinRequest
    deadline_ms: int  # end of its session, unless it sends a request before
    joining: RequestTicket | None = None  # its waiting JoinGroup request
    syncing: RequestTicket | None = None  # its waiting SyncGroup request
    synced: bool = False  # has sent SyncGroup in this generation
    assignment: bytes = b""

    @property
    def waits(self) -> bool:
        """Return whether the member waits for a response. Its session does not end while it waits."""
        return self.joining is not None or self.syncing is not None

    def renew_session(self, now_ms: int) -> None:
        self.deadline_ms = now_ms + self.join.session_ms

    def metadata(self, protocol: str | None) -> bytes:
        """Return the member's metadata for the chosen protocol."""
        return next((offer.metadata for offer in self.join.protocols if offer.name == protocol), b"")

    def fail_pending(self, code: ErrorCode) -> list[GroupResponse]:
        """End the member's waiting requests, and return an error response for each."""
        answers: list[GroupResponse] = []
        if self.joining is not None:
            answers.append(JoinResponse(ticket=self.joining, code=code, member_id=self.id))
        if self.syncing is not None:
            answers.append(SyncResponse(ticket=self.syncing, code=code))
        self.joining = self.syncing = None
        return answers
