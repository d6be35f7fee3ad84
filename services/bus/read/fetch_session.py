"""The client side of a fetch session (KIP-227) with one broker. No I/O.

In a session, a request names only the partitions whose offset has changed, and a response contains only the partitions
that have new data. If the broker does not open a session, each request names all partitions.
"""

from collections.abc import Mapping
from typing import Final

from services.bus.read.fetch_wire import NO_SESSION, OPEN_EPOCH, WITHOUT_SESSION_EPOCH, FetchAsk, PartitionData
from services.bus.records import Partition

_LARGEST_EPOCH: Final = 2**31 - 1


class ClientFetchSession:
    """One reader's session with one broker.

    Attributes:
        behind: Partitions of which the broker may have more records than it has sent.
        answered_for: Partitions in the response to the last request.
    """

    __slots__ = ("_ends", "_epoch", "_offsets", "_session_id", "_turn", "answered_for", "behind")

    def __init__(self) -> None:
        self.behind: set[Partition] = set()
        self.answered_for: list[Partition] = []
        self._session_id = NO_SESSION
        self._epoch = OPEN_EPOCH
        self._offsets: dict[Partition, int] = {}  # as the broker has them in this session
        self._ends: dict[Partition, int] = {}
        self._turn = 0

    @property
    def goes_on(self) -> bool:
        return self._epoch != OPEN_EPOCH

    def ask(self, offsets: Mapping[Partition, int], *, whole: bool = True) -> FetchAsk:
        """Return the next fetch request.

        Args:
            offsets: Partitions to read, each with the next offset to read.
            whole: Whether to read only the partitions in ``offsets``. If not, the session also goes on reading all
                partitions that it already reads.
        """
        self.answered_for.clear()
        if self._epoch == OPEN_EPOCH:
            self._turn += 1
            self._offsets = dict(offsets)
            self._ends.clear()
            self.behind.clear()
            return FetchAsk(self._session_id, OPEN_EPOCH, _rotated(offsets, self._turn))
        known = self._offsets
        changed = {partition: offset for partition, offset in offsets.items() if known.get(partition) != offset}
        known.update(changed)
        fewer = whole and len(known) > len(offsets)
        forgotten = [partition for partition in known if partition not in offsets] if fewer else []
        for partition in forgotten:
            del known[partition]
            self._ends.pop(partition, None)
            self.behind.discard(partition)
        for partition in changed:  # if a response leaves it out, its end is the same as before
            self._note(partition, offsets[partition])
        return FetchAsk(self._session_id, self._epoch, changed, forgotten)

    def answered(self, session_id: int) -> None:
        if session_id == NO_SESSION:  # the broker keeps no session for us
            self._session_id, self._epoch = NO_SESSION, OPEN_EPOCH
        else:
            self._session_id, self._epoch = session_id, self._epoch % _LARGEST_EPOCH + 1

    def read(self, part: PartitionData, offset: int) -> None:
        partition = (part.topic, part.partition)
        self.answered_for.append(partition)
        if part.error:
            self._ends.pop(partition, None)
            self.behind.add(partition)
        else:
            self._ends[partition] = part.end
            self._note(partition, offset)

    def reset(self) -> None:
        """Make the next request open a new session. The caller must call this if a response was lost."""
        self._epoch = OPEN_EPOCH

    def _note(self, partition: Partition, offset: int) -> None:
        end = self._ends.get(partition)
        if end is None or offset < end:
            self.behind.add(partition)
        else:
            self.behind.discard(partition)


def ask_once(offsets: Mapping[Partition, int]) -> FetchAsk:
    return FetchAsk(NO_SESSION, WITHOUT_SESSION_EPOCH, offsets)


def _rotated(offsets: Mapping[Partition, int], turn: int) -> dict[Partition, int]:
    partitions = list(offsets)  # a broker fills its response in this order, so each turn begins with another partition
    first = turn % len(partitions) if partitions else 0
    return {partition: offsets[partition] for partition in partitions[first:] + partitions[:first]}
