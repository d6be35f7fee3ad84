"""Which connections are open, what each waits for, and which one makes room when there are too many. Pure."""

import ipaddress
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final, Generic, Literal, TypeVar

Key = TypeVar("Key", bound=Hashable)

Wait = Literal["request", "body", "hello", "next"]
"""What the server waits for: the first request's head, a body, a websocket's first message, or the next request."""

Refusal = Literal["address", "total"]
"""Which limit a connection is over: that of its address, or that of the server."""

MAX_REFUSED: Final = 32
"""Most connections beyond the limits. They get health checks answered, and one sentence for anything else."""

_IPV6_NETWORK_BITS: Final = 64
"""One client commonly has a whole IPv6 network of this prefix."""


@dataclass(frozen=True, slots=True)
class Admission(Generic[Key]):
    """What to do about a new connection.

    Attributes:
        over: The limit that it is over; None when there is room.
        evicted: The connection to close for it, with what that one waited for; None when there is room.
        refusal: Why it may only make health checks; None when it may do everything.
    """

    over: Refusal | None = None
    evicted: tuple[Key, Wait] | None = None
    refusal: Refusal | None = None


@dataclass(slots=True)
class _Entry:
    group: str
    refusal: Refusal | None
    wait: Wait | None = "request"
    deadline_s: float = 0.0


@dataclass(slots=True)
class _Group(Generic[Key]):
    """The connections of one client address: how many, and those that wait, the longest wait first."""

    count: int = 0
    waiting: OrderedDict[Key, None] = field(default_factory=OrderedDict)


class ConnectionTable(Generic[Key]):
    """All open connections. A connection that waits for its client makes room for a new one; a busy one never does."""

    def __init__(self, most: int, most_per_address: int) -> None:
        self._most = most
        self._most_per_address = most_per_address
        self._entries: dict[Key, _Entry] = {}
        self._waiting: OrderedDict[Key, None] = OrderedDict()
        self._refused: OrderedDict[Key, None] = OrderedDict()
        self._groups: dict[str, _Group[Key]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def open(self, key: Key, address: str, deadline_s: float) -> Admission[Key]:
        """Add a connection that waits for its first request until the deadline."""
        name = address_group(address)
        group = self._groups.get(name)
        over = refusal = self._refusal(group)
        evicted: Key | None = None
        if refusal is not None:
            candidates = group.waiting if refusal == "address" and group is not None else self._waiting
            evicted = next(iter(candidates), None)
            refusal = refusal if evicted is None else None
        if refusal is not None and len(self._refused) >= MAX_REFUSED:
            evicted = next(iter(self._refused))
        wait = None if evicted is None else self._entries[evicted].wait
        if evicted is not None:
            self.close(evicted)
        self._entries[key] = _Entry(name, refusal)
        if refusal is None:
            self._groups.setdefault(name, _Group()).count += 1
        else:
            self._refused[key] = None
        self.wait(key, "request", deadline_s)
        return Admission(over, None if evicted is None else (evicted, wait or "next"), refusal)

    def wait(self, key: Key, what: Wait, deadline_s: float) -> None:
        """Note that the client has to send something until the deadline."""
        entry = self._entries.get(key)
        if entry is None:
            return
        self.busy(key)
        entry.wait, entry.deadline_s = what, deadline_s
        if entry.refusal is None:
            self._waiting[key] = None
            self._groups[entry.group].waiting[key] = None

    def busy(self, key: Key) -> None:
        """Note that the server works for the connection: it has no deadline and makes no room."""
        entry = self._entries.get(key)
        if entry is not None:
            entry.wait = None
            if entry.refusal is None:
                self._waiting.pop(key, None)
                self._groups[entry.group].waiting.pop(key, None)

    def refusal(self, key: Key) -> Refusal | None:
        entry = self._entries.get(key)
        return None if entry is None else entry.refusal

    def close(self, key: Key) -> None:
        """Remove a connection, if it is there."""
        self.busy(key)
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        self._refused.pop(key, None)
        if entry.refusal is None:
            group = self._groups[entry.group]
            group.count -= 1
            if not group.count:
                del self._groups[entry.group]

    def expire(self, now_s: float) -> list[tuple[Key, Wait]]:
        """Remove the connections whose deadline has passed; return them with what they waited for."""
        expired = [
            (key, entry.wait)
            for key, entry in self._entries.items()
            if entry.wait is not None and entry.deadline_s <= now_s
        ]
        for key, _ in expired:
            self.close(key)
        return expired

    def _refusal(self, group: _Group[Key] | None) -> Refusal | None:
        if group is not None and group.count >= self._most_per_address:
            return "address"
        return "total" if len(self._entries) - len(self._refused) >= self._most else None


def address_group(address: str) -> str:
    """Return what counts as one client address: an IPv4 address, or the network of an IPv6 address."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.version == 4:
        return address
    mapped = parsed.ipv4_mapped
    return str(mapped or ipaddress.ip_network((parsed, _IPV6_NETWORK_BITS), strict=False))
