"""Count the open connections, and choose which one to close when there are too many."""

import ipaddress
from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Final, Generic, Literal, TypeVar, get_args

Key = TypeVar("Key", bound=Hashable)

Wait = Literal["request", "body", "hello", "next"]
"""What the client must send next: the first request's head, a body, a websocket's first message, or a next request."""

Refusal = Literal["address", "total"]
"""The limit that a connection exceeds: the one per client address, or the one for all connections."""

MAX_REFUSED: Final = 32
"""Maximum number of connections that exceed a limit and stay open. On them only health checks get a normal answer."""

_IPV6_NETWORK_BITS: Final = 64
"""Prefix length of an IPv6 network that counts as one client, because networks of this size have one owner."""


ConnectionKind = Literal["idle", "http", "websocket", "refused"]
"""An ``idle`` connection serves no request. A ``refused`` one exceeds a limit, and only health checks work on it."""

CONNECTION_KINDS: Final[tuple[ConnectionKind, ...]] = get_args(ConnectionKind)

PROXIED: Final = ""
"""The group for connections from trusted proxies while they carry no request. It has no limit per address."""


@dataclass(frozen=True, slots=True)
class ConnectionAdmission(Generic[Key]):
    """What the table has decided about a connection.

    Attributes:
        over: The limit that the connection exceeded; None if it exceeded none.
        evicted: A connection that was removed from the table to make room, and its ``Wait``. The caller must close
            this connection. None if no connection was removed.
        refusal: Equal to ``over`` if no room could be made; otherwise None. If it is set, the caller must refuse every
            request except a health check.
    """

    over: Refusal | None = None
    evicted: tuple[Key, Wait] | None = None
    refusal: Refusal | None = None


@dataclass(slots=True)
class _Entry:
    group: str
    refusal: Refusal | None
    is_websocket: bool = False
    wait: Wait | None = "request"
    deadline_s: float = 0.0


@dataclass(slots=True)
class _Group(Generic[Key]):
    count: int = 0
    # Connections that wait for their client, the longest wait first.
    waiting: OrderedDict[Key, None] = field(default_factory=OrderedDict)


class ConnectionTable(Generic[Key]):
    """All open connections, with a limit for each client address and a limit for all connections.

    A connection waits while its client must send something, such as the next request (see ``Wait``). A new connection
    beyond a limit replaces the connection that has waited longest. At the limit of an address, the new connection
    replaces only a connection of the same address.

    If no such connection waits, the table accepts the new connection for health checks only. Such a connection is
    called *refused*, because all other requests on it are refused. If ``MAX_REFUSED`` refused connections are open
    already, the new connection replaces the oldest of them.
    """

    def __init__(self, max_connections: int, max_per_address: int) -> None:
        self._max_connections = max_connections
        self._max_per_address = max_per_address
        self._entries: dict[Key, _Entry] = {}
        self._waiting: OrderedDict[Key, None] = OrderedDict()
        self._refused: OrderedDict[Key, None] = OrderedDict()
        self._groups: dict[str, _Group[Key]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._entries)

    def open(self, key: Key, address: str, deadline_s: float) -> ConnectionAdmission[Key]:
        """Add a connection, with the deadline of its first request.

        ``address`` is the client's address, or ``PROXIED`` for a connection from a trusted proxy.
        """
        name = address_group(address)
        group = self._groups.get(name)
        over = refusal = self._refusal(name, group)
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
        return ConnectionAdmission(over, None if evicted is None else (evicted, wait or "next"), refusal)

    def wait(self, key: Key, what: Wait, deadline_s: float) -> None:
        entry = self._entries.get(key)
        if entry is None:
            return
        self.busy(key)
        entry.wait, entry.deadline_s = what, deadline_s
        if entry.refusal is None:
            self._waiting[key] = None
            self._groups[entry.group].waiting[key] = None

    def busy(self, key: Key) -> None:
        """Record that a connection no longer waits for its client.

        The connection has no deadline until ``wait`` sets one.
        """
        entry = self._entries.get(key)
        if entry is not None:
            entry.wait = None
            if entry.refusal is None:
                self._waiting.pop(key, None)
                self._groups[entry.group].waiting.pop(key, None)

    def move(self, key: Key, address: str) -> ConnectionAdmission[Key]:
        """Count a trusted proxy's connection for the client at ``address``, or for no client (``PROXIED``).

        If the client already has its maximum number of connections, the one that has waited longest (see ``Wait``) is
        removed from the table. If none of them waits, the table does not change, and the result has a ``refusal``.

        Args:
            key: The connection.
            address: Address of the client whose request is on the connection; ``PROXIED`` between two requests.
        """
        # ``address`` is ``PROXIED`` between two requests.
        entry, name = self._entries.get(key), address_group(address)
        if entry is None or entry.refusal is not None or entry.group == name:
            return ConnectionAdmission()
        group = self._groups.get(name)
        over: Refusal | None = None
        evicted: tuple[Key, Wait] | None = None
        if name != PROXIED and group is not None and group.count >= self._max_per_address:
            over = "address"
            longest = next(iter(group.waiting), None)
            if longest is None:
                return ConnectionAdmission(over, None, over)
            evicted = longest, self._entries[longest].wait or "next"
            self.close(longest)
        waits = key in self._groups[entry.group].waiting
        self._leave(key, entry)
        entry.group = name
        group = self._groups.setdefault(name, _Group())
        group.count += 1
        if waits:
            group.waiting[key] = None
        return ConnectionAdmission(over, evicted)

    def upgrade(self, key: Key) -> None:
        entry = self._entries.get(key)
        if entry is not None:
            entry.is_websocket = True

    def kinds(self) -> Counter[ConnectionKind]:
        return Counter(map(_kind, self._entries.values()))

    def refusal(self, key: Key) -> Refusal | None:
        entry = self._entries.get(key)
        return None if entry is None else entry.refusal

    def close(self, key: Key) -> None:
        self.busy(key)
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        self._refused.pop(key, None)
        if entry.refusal is None:
            self._leave(key, entry)

    def expire(self, now_s: float) -> list[tuple[Key, Wait]]:
        """Remove the connections whose deadline has passed. Return each of them with its ``Wait``."""
        expired = [
            (key, entry.wait)
            for key, entry in self._entries.items()
            if entry.wait is not None and entry.deadline_s <= now_s
        ]
        for key, _ in expired:
            self.close(key)
        return expired

    def _leave(self, key: Key, entry: _Entry) -> None:
        group = self._groups[entry.group]
        group.waiting.pop(key, None)
        group.count -= 1
        if not group.count:
            del self._groups[entry.group]

    def _refusal(self, name: str, group: _Group[Key] | None) -> Refusal | None:
        if name != PROXIED and group is not None and group.count >= self._max_per_address:
            return "address"
        return "total" if len(self._entries) - len(self._refused) >= self._max_connections else None


def _kind(entry: _Entry) -> ConnectionKind:
    if entry.refusal is not None:
        return "refused"
    if entry.is_websocket:
        return "websocket"
    return "idle" if entry.wait in {"request", "next"} else "http"


def address_group(address: str) -> str:
    """Return the key under which an address is counted: an IPv4 address itself, or an IPv6 address's /64 network."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.version == 4:
        return address
    mapped = parsed.ipv4_mapped
    return str(mapped or ipaddress.ip_network((parsed, _IPV6_NETWORK_BITS), strict=False))
