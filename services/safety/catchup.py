"""When a partition that was just assigned has been read up to where its log ended then. Pure bookkeeping."""

from typing import Final

QUIET_S: Final = 2.0
"""A partition that has been silent for so long is caught up: its last record may be of a kind that is passed over."""


class Catchup:
    """Partitions that are being read back."""

    def __init__(self) -> None:
        self._until: dict[int, int] = {}
        self._heard_s: dict[int, float] = {}

    def begin(self, ends: dict[int, int], now_s: float) -> None:
        """These partitions and no other are read back, each up to the offset its next record would have had."""
        self._until = dict(ends)
        self._heard_s = dict.fromkeys(ends, now_s)

    def read(self, partition: int, offset: int, now_s: float) -> bool:
        """A record was read. Returns whether the partition is caught up by it, once."""
        until = self._until.get(partition)
        if until is None:
            return False
        self._heard_s[partition] = now_s
        if offset + 1 < until:
            return False
        del self._until[partition]
        return True

    def quiet(self, now_s: float) -> list[int]:
        """Partitions that count as caught up because nothing more comes, each once."""
        found = [partition for partition in self._until if now_s - self._heard_s[partition] >= QUIET_S]
        for partition in found:
            del self._until[partition]
        return found
