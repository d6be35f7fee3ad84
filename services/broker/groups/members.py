"""The data types of a consumer group: members, requests and responses."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from services.broker.protocol.error_codes import ErrorCode

RequestTicket = object  # a request whose response may come later; opaque here


class GroupState(Enum):
    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"  # waits for every member to join
    COMPLETING = "CompletingRebalance"  # waits for the leader's assignment
    STABLE = "Stable"


class AssignmentProtocol(NamedTuple):
    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
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
    member_id: str
    instance_id: str | None
    generation: int
    assignments: Mapping[str, bytes]


class Peer(NamedTuple):
    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinResponse:
    ticket: RequestTicket
    code: ErrorCode = ErrorCode.NONE
    generation: int = -1
    protocol: str = ""
    leader: str = ""
    member_id: str = ""
    peers: tuple[Peer, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResponse:
    ticket: RequestTicket
    code: ErrorCode = ErrorCode.NONE
    assignment: bytes = b""


GroupResponse = JoinResponse | SyncResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class StableGroup:
    """A group in the state Stable, as it is stored on disk."""

    generation: int
    protocol: str
    leader: str
    members: tuple[tuple[JoinRequest, bytes], ...]  # JoinGroup request, with current member id, and assignment


@dataclass(slots=True)
class MemberMetadata:
    id: str
    join: JoinRequest
    deadline_ms: int  # end of its session, unless it sends a request before
    joining: RequestTicket | None = None  # its waiting JoinGroup request
    syncing: RequestTicket | None = None  # its waiting SyncGroup request
    synced: bool = False  # has sent SyncGroup in this generation
    assignment: bytes = b""

    @property
    def waits(self) -> bool:
        """Return whether the member waits for a response to JoinGroup or SyncGroup."""
        return self.joining is not None or self.syncing is not None

    def renew_session(self, now_ms: int) -> None:
        self.deadline_ms = now_ms + self.join.session_ms

    def metadata(self, protocol: str | None) -> bytes:
        return next((offer.metadata for offer in self.join.protocols if offer.name == protocol), b"")

    def fail_pending(self, code: ErrorCode) -> list[GroupResponse]:
        """Forget the member's unanswered JoinGroup and SyncGroup requests. Return an error response for each."""
        answers: list[GroupResponse] = []
        if self.joining is not None:
            answers.append(JoinResponse(ticket=self.joining, code=code, member_id=self.id))
        if self.syncing is not None:
            answers.append(SyncResponse(ticket=self.syncing, code=code))
        self.joining = self.syncing = None
        return answers
