"""Detect changes to an archive: edited, dropped, inserted or reordered records, or records missing at the end."""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from services.archive.chain import ArchivedRecord, breaks, chained, size
from services.archive.checkpoint import ChainCheckpoint, ChainState, DataFile, read_checkpoint, state_after
from services.archive.extras import need
from services.archive.keys import Verifier
from services.archive.reader import Archive, UnreadableFile
from services.archive.records import archived_records, schema
from services.archive.store import Store
from services.archive.writer import checkpoint_in, day_of

MAX_FINDINGS: Final = 1_000
"""Maximum number of findings that are kept. Further ones are only counted."""

MAX_OFFSET: Final = 2**63 - 1
"""The highest offset of a log. A file that somebody put into the archive may have a higher one in its name."""

MAX_DIGITS: Final = 5
"""Number of digits of the highest partition number that a data file's name can have."""

Place = tuple[str, int]


@dataclass(frozen=True, slots=True, order=True)
class Tampering:
    """A detected change.

    Attributes:
        offset: Offset at which the change was detected.
        what: Description of the change, as one sentence.
        file: Path of the data file or checkpoint file in which the change was detected.
    """

    topic: str
    partition: int
    offset: int
    what: str
    file: str


@dataclass(slots=True)
class Verification:
    """The result of a verification.

    Attributes:
        tampering: The first ``MAX_FINDINGS`` detected changes.
        count: Number of all detected changes.
        gaps: Number of gaps in the offsets. A gap alone is no sign of tampering, because the log itself can have gaps.
        heads: The newest checkpoint of each partition.
    """

    tampering: list[Tampering] = field(default_factory=list)
    count: int = 0
    files: int = 0
    records: int = 0
    gaps: int = 0
    heads: dict[Place, ChainCheckpoint] = field(default_factory=dict)

    def add(self, found: Tampering) -> None:
        self.count += 1
        if len(self.tampering) < MAX_FINDINGS:
            self.tampering.append(found)


def verify(archive: Archive, keys: Verifier, anchors: Iterable[ChainCheckpoint] = ()) -> Verification:
    """Check a whole archive for changes. ``keys`` has the public keys that the user trusts.

    ``anchors`` are checkpoints of the archive that were kept outside it. They show whether the newest records were
    removed.
    """
    outcome = Verification()
    noted = _noted(archive.store)  # first, because a running archiver writes a file before its checkpoint
    files: dict[Place, list[DataFile]] = defaultdict(list)
    for file in archive.files():
        files[file.topic, file.partition].append(file)
    kept: dict[Place, list[ChainCheckpoint]] = defaultdict(list)
    for anchor in anchors:
        kept[anchor.topic, anchor.partition].append(anchor)
    for place in sorted({*files, *noted, *kept}):
        _Partition(archive, keys, place, outcome).check(files[place], noted.get(place, {}), kept[place])
    return outcome


def read_anchors(text: bytes) -> list[ChainCheckpoint] | None:
    """Parse a file of checkpoints, one per line; return None if a line is invalid."""
    found = [read_checkpoint(line) for line in text.splitlines() if line.strip()]
    return None if any(anchor is None for anchor in found) else [anchor for anchor in found if anchor is not None]


class _Partition:
    def __init__(self, archive: Archive, keys: Verifier, place: Place, outcome: Verification) -> None:
        self._archive = archive
        self._keys = keys
        self._place = place
        self._outcome = outcome
        self._state: ChainState = state_after(None, *place)
        self._last: int | None = None  # offset of the last record
        self._at: dict[int, tuple[str, int, int]] = {}  # by the file's end: head, records and bytes up to there

    def check(
        self, files: list[DataFile], noted: Mapping[int, ChainCheckpoint | None], anchors: list[ChainCheckpoint]
    ) -> None:
        by_start: dict[int, ChainCheckpoint] = {}
        for file in sorted(files, key=lambda each: (each.start, each.day)):
            checkpoint = self._check_file(file, noted)
            if checkpoint is not None:
                by_start[file.start] = checkpoint
        self._check_noted(noted, by_start)
        for anchor in anchors:
            self._check_anchor(anchor)
        if by_start:
            newest = by_start[max(by_start)]
            self._outcome.heads[self._place] = newest

    def _check_file(self, file: DataFile, noted: Mapping[int, ChainCheckpoint | None]) -> ChainCheckpoint | None:
        outcome, state = self._outcome, self._state
        outcome.files += 1
        if file.start < state.end:
            self._found(file.start, "a file begins before the one before it ends: a copy, or a moved one", file.path)
            return None
        if file.start > state.end:
            self._found(state.end, f"records are missing up to offset {file.start - 1}: a file was removed", file.path)
        signed = checkpoint_in(self._archive.store, file.path)
        if signed is None or not self._keys.is_signed(signed) or (signed.topic, signed.partition, signed.start) != (
            file.topic, file.partition, file.start,
        ):  # fmt: skip
            self._found(file.start, "the file's own checkpoint is missing, of another file, or not signed", file.path)
            signed = noted.get(file.start)
            if signed is None or not self._keys.is_signed(signed):
                signed = None
        if signed is not None and not day_of(signed.from_ms) <= file.day <= day_of(signed.to_ms):
            self._found(
                file.start, "the file is in the folder of one day, but its records are of another day", file.path
            )
        rows = self._rows(file)
        if file.start > state.end and signed is not None:  # continue after the gap
            count = signed.total - signed.count
            length = signed.length - sum(size(archived.record) for archived, _ in rows or ())
            self._state = state = ChainState(file.start, bytes.fromhex(signed.before), count, length)
        noted_here = noted.get(file.start)
        if rows is not None and noted_here is not None and not self._has_hash(file, noted_here):
            places = f"look at offsets {file.start} to {noted_here.last}"
            self._found(file.start, f"the file is not the one that was signed: {places}", file.path)
        if rows is None:
            self._found(file.start, "the file cannot be read", file.path)
            if signed is not None:
                self._continue(signed)
            return signed
        self._check_rows(file, rows, signed)
        if signed is not None:
            self._continue(signed)
        elif rows:
            head = list(chained(state.head, (archived for archived, _ in rows)))[-1]
            self._last = rows[-1][0].record.offset
            self._state = ChainState(self._last + 1, head, state.total + len(rows), state.length)
        return signed

    def _check_rows(
        self, file: DataFile, rows: list[tuple[ArchivedRecord, bytes]], signed: ChainCheckpoint | None
    ) -> None:
        outcome, state = self._outcome, self._state
        outcome.records += len(rows)
        before = outcome.count
        for change, offset, after in breaks(state.head, rows, self._last):
            self._found(offset, _sentence(change, offset, after), file.path)
        wrong = [archived.record.offset for archived, _ in rows if archived.record.partition != file.partition]
        if wrong:
            self._found(wrong[0], "the record is of another partition", file.path)
        offsets = [archived.record.offset for archived, _ in rows]
        outcome.gaps += sum(1 for low, high in zip([file.start - 1, *offsets], offsets, strict=False) if high > low + 1)
        if signed is None:
            return
        if outcome.count == before:
            self._check_end(file, rows, signed)
        elif (signed.count, signed.last) != (len(rows), offsets[-1] if offsets else -1) and offsets:
            self._check_cut(file, offsets, signed)

    def _check_end(self, file: DataFile, rows: list[tuple[ArchivedRecord, bytes]], signed: ChainCheckpoint) -> None:
        state = self._state
        offsets = [archived.record.offset for archived, _ in rows]
        if len(rows) < signed.count and (not offsets or offsets[-1] < signed.last):
            return self._check_cut(file, offsets, signed)
        head = rows[-1][1].hex() if rows else state.head.hex()
        length = state.length + sum(size(archived.record) for archived, _ in rows)
        told = (len(rows), state.total + len(rows), length, head, state.head.hex())
        if told != (signed.count, signed.total, signed.length, signed.head, signed.before):
            self._found(
                file.start,
                f"offsets {file.start} to {signed.last} were written anew with a chain of their own: they are not what"
                " was signed",
                file.path,
            )
        return None

    def _check_cut(self, file: DataFile, offsets: list[int], signed: ChainCheckpoint) -> None:
        last = offsets[-1] if offsets else file.start - 1
        if last < signed.last:
            self._found(last + 1, f"the file's tail is cut off: it went on to offset {signed.last}", file.path)

    def _continue(self, signed: ChainCheckpoint) -> None:
        self._state = state_after(signed, *self._place)
        self._last = signed.last
        self._at[signed.end] = (signed.head, signed.total, signed.length)

    def _check_noted(
        self, noted: Mapping[int, ChainCheckpoint | None], by_start: Mapping[int, ChainCheckpoint]
    ) -> None:
        topic, partition = self._place
        for start, checkpoint in sorted(noted.items()):
            name = f"checkpoints/{topic}/{partition}/{start:020d}.json"
            if checkpoint is None or not self._keys.is_signed(checkpoint) or checkpoint.start != start:
                self._found(start, "the checkpoint is not signed, or cannot be read", name)
            elif start not in by_start and start >= self._state.end:
                self._found(start, f"the tail is cut off: offsets {start} to {checkpoint.last} were archived", name)
            elif start in by_start and not by_start[start].says_the_same(checkpoint):
                self._found(start, "the file and the checkpoint beside it were signed with different content", name)
        for start in sorted(by_start.keys() - noted.keys()):
            name = f"checkpoints/{topic}/{partition}/{start:020d}.json"
            if start != max(by_start) and not self._archive.store.exists(name):  # it may have been written meanwhile
                self._found(start, "the checkpoint was removed", name)

    def _check_anchor(self, anchor: ChainCheckpoint) -> None:
        if not self._keys.is_signed(anchor):
            self._found(anchor.start, "the anchor is not signed with a key that is trusted", "anchors")
            return
        here = self._at.get(anchor.end)
        if here is None and anchor.end > self._state.end:
            self._found(self._state.end, f"the tail is cut off: offset {anchor.last} was archived", "anchors")
        elif here != (anchor.head, anchor.total, anchor.length):
            self._found(anchor.start, "the archive has another history than the anchor", "anchors")

    def _has_hash(self, file: DataFile, noted: ChainCheckpoint) -> bool:
        return hashlib.sha256(self._archive.store.read(file.path)).hexdigest() == noted.file_sha256

    def _rows(self, file: DataFile) -> list[tuple[ArchivedRecord, bytes]] | None:
        pa = need("pyarrow")
        try:
            table = self._archive.table(file, schema().names)
            return list(archived_records(file.topic, table))
        except (UnreadableFile, pa.ArrowException, OSError, ValueError, LookupError, ArithmeticError, TypeError):
            return None

    def _found(self, offset: int, what: str, file: str) -> None:
        self._outcome.add(Tampering(*self._place, min(offset, MAX_OFFSET), what, file))  # JSON takes no larger one


def _sentence(change: str, offset: int, after: int | None) -> str:
    match change:
        case "dropped":
            first = 0 if after is None else after + 1
            return f"records between offsets {first} and {offset} were dropped, or this one edited"
        case "reordered":
            return f"the record at offset {offset} is out of order"
        case "inserted":
            return f"the record at offset {offset} was inserted"
        case _:
            return f"the record at offset {offset} was edited, or one before it dropped"


def _noted(store: Store) -> dict[Place, dict[int, ChainCheckpoint | None]]:
    found: dict[Place, dict[int, ChainCheckpoint | None]] = defaultdict(dict)
    for topic, partition, name in _checkpoint_names(store):
        start = name.rpartition("/")[2].removesuffix(".json")
        try:
            found[topic, partition][int(start)] = read_checkpoint(store.read(name))
        except (OSError, ValueError):
            found[topic, partition][int(start) if start.isdecimal() else 0] = None
    return found


def _checkpoint_names(store: Store) -> Iterator[tuple[str, int, str]]:
    for folder in store.names("checkpoints"):
        for inner in store.names(folder):
            number: Any = inner.rpartition("/")[2]
            if number.isdecimal() and len(number) <= MAX_DIGITS:
                for name in store.names(inner):
                    yield folder.rpartition("/")[2], int(number), name
