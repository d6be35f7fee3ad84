"""Read a job's input once: find the invalid lines, and choose the order in which the valid lines are submitted."""

import hashlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from struct import Struct
from typing import BinaryIO, Final

import msgspec

from schemas.batches import LineFault
from services.jobs.lines import MAX_LINE_BYTES, BadLine, JobLine, parse_line
from services.jobs.prefix_order import prefix_key, prefix_order
from services.jobs.store import JobStore
from services.runtime.files import whole_file, write_whole

PLAN: Final = "plan.json"
INDEX: Final = "index"
FAULTS: Final = "faults"
MAX_LINES: Final = 50_000_000
MAX_FAULTS: Final = 100
"""Maximum number of faults in the list when a job is refused. The lines after the last of them are not read. There is
no such limit for a job that runs and only reports its invalid lines."""

_ENTRY: Final = Struct("<QII")
"""Entry of the index: offset and length of a line in the input, and its line number, from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """The result of reading a job's input.

    Attributes:
        good: Number of valid lines.
        bad: Number of invalid lines that were found.
        refused: At most ``MAX_FAULTS`` reasons to refuse the whole job; empty if the job is accepted.
    """

    good: int
    bad: int
    refused: tuple[LineFault, ...] = ()

    @property
    def lines(self) -> int:
        return self.good + self.bad


@dataclass(slots=True)
class _Scan:
    # Entry n of each list is about the n-th valid line.
    offsets: "array[int]" = field(default_factory=lambda: array("Q"))
    lengths: "array[int]" = field(default_factory=lambda: array("L"))
    numbers: "array[int]" = field(default_factory=lambda: array("L"))
    names: "array[int]" = field(default_factory=lambda: array("Q"))  # hashes of the lines' ``custom_id``
    keys: list[bytes] = field(default_factory=list)


def prepare(store: JobStore, batch_id: str, input_file: str, *, refuse_bad: bool) -> JobPlan:
    """Return the plan of a job. The first call reads the input and stores the plan; later calls read the stored plan.

    If ``refuse_bad`` is true, invalid lines are reasons to refuse the job (``JobPlan.refused``).

    Raises:
        OSError: The input cannot be read.
    """
    folder = store.work_folder(batch_id)
    if is_prepared(store, batch_id):
        return msgspec.json.decode((folder / PLAN).read_bytes(), type=JobPlan)
    scan = _Scan()
    bad, refused = 0, list[LineFault]()
    # A file of bad lines only has millions of faults, so they are not kept in memory. They are written as a JSON array,
    # with one fault in a line: older versions read the file whole.
    with store.open(input_file) as file, whole_file(folder / FAULTS) as faults:
        for fault in _read(file, scan):
            bad += 1
            if not refuse_bad:
                faults.write((b"[" if bad == 1 else b",\n") + msgspec.json.encode(fault))
                continue
            refused.append(fault)
            if bad == MAX_FAULTS:
                break
        faults.write(b"]" if bad and not refuse_bad else b"[]")
        refused = _duplicates(file, scan) or refused
    if not scan.numbers and not bad:
        refused = [LineFault(code="empty_file", message="The file has no lines.")]
    plan = JobPlan(good=len(scan.numbers), bad=bad, refused=tuple(refused))
    if not refused:
        order = prefix_order(scan.keys)
        scan.keys.clear()
        index = bytearray(len(order) * _ENTRY.size)
        for place, n in enumerate(order):
            _ENTRY.pack_into(index, place * _ENTRY.size, scan.offsets[n], scan.lengths[n], scan.numbers[n])
        write_whole(folder / INDEX, index)
    write_whole(folder / PLAN, msgspec.json.encode(plan))
    return plan


def is_prepared(store: JobStore, batch_id: str) -> bool:
    return (store.work_folder(batch_id) / PLAN).exists()


def numbered_lines(file: BinaryIO) -> Iterator[tuple[int, int, bytes]]:
    """Yield the line number (from 1), the offset and the bytes of each line that is not blank.

    Skip the rest of a line after its first ``MAX_LINE_BYTES + 2`` bytes.

    Raises:
        OSError: The file has more than ``MAX_LINES`` lines.
    """
    number = offset = 0
    while raw := file.readline(MAX_LINE_BYTES + 2):
        number += 1
        begin, offset = offset, offset + len(raw)
        while not raw.endswith(b"\n") and (rest := file.readline(1 << 20)):  # skip the end of a line that is too long
            offset += len(rest)
            if rest.endswith(b"\n"):
                break
        if number > MAX_LINES:
            raise OSError(27, f"the file has more than {MAX_LINES:,} lines")
        if raw.strip():
            yield number, begin, raw.rstrip(b"\r\n")


def _read(file: BinaryIO, scan: _Scan) -> Iterator[LineFault]:
    for number, offset, raw in numbered_lines(file):
        try:
            line = parse_line(raw)
        except BadLine as bad:
            yield LineFault(
                code=bad.code, message=f"Line {number}: {bad.message}", line=number, param=bad.param,
                custom_id=bad.custom_id and bad.custom_id[:512],
            )  # fmt: skip
            continue
        scan.offsets.append(offset)
        scan.lengths.append(len(raw))
        scan.numbers.append(number)
        scan.names.append(_name_hash(line.custom_id))
        scan.keys.append(prefix_key([line.model, *(f"{m.role}\x01{m.content}" for m in line.messages)]))


def _name_hash(custom_id: str) -> int:
    return int.from_bytes(hashlib.blake2b(custom_id.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def _duplicates(file: BinaryIO, scan: _Scan) -> list[LineFault]:
    by_name = sorted(range(len(scan.names)), key=scan.names.__getitem__)
    pairs = [(a, b) for a, b in pairwise(by_name) if scan.names[a] == scan.names[b]]
    # Different ids may have equal hashes, so the ids themselves are compared.
    suspects = sorted({n for pair in pairs for n in pair})
    first: dict[str, int] = {}
    found: list[LineFault] = []
    for n in suspects:
        file.seek(scan.offsets[n])
        custom_id = parse_line(file.read(scan.lengths[n])).custom_id
        if custom_id in first:
            message = f"Line {scan.numbers[n]}: the custom_id {custom_id[:64]!r} is also on line {first[custom_id]}."
            found.append(
                LineFault(code="duplicate_custom_id", message=message, line=scan.numbers[n], param="custom_id")
            )
            if len(found) >= MAX_FAULTS:
                break
        else:
            first[custom_id] = scan.numbers[n]
    return found


class JobLines:
    """The valid lines of a job, read from the input file one by one.

    The methods identify a line by its ``place``: its position in the order of submission, from 0.
    """

    def __init__(self, store: JobStore, batch_id: str, input_file: str) -> None:
        self._index = (store.work_folder(batch_id) / INDEX).open("rb")
        self._store = store
        self._input_file = input_file
        self._input: BinaryIO | None = None

    def open_input(self) -> BinaryIO:
        """Open the input, if it is not open yet. From then on, its lines can be read even if it is deleted.

        Raises:
            FileNotFoundError: There is no such file.
        """
        if self._input is None:
            self._input = self._store.open(self._input_file)
        return self._input

    def number(self, place: int) -> int:
        """Convert ``place``, a position in the order of submission, to the number of this line in the input file.

        Places count from 0, and line numbers from 1.
        """
        return self._entry(place)[2]

    def line(self, place: int) -> JobLine:
        """Read and parse a line.

        Raises:
            BadLine: Another version of Railbus, which made the plan, accepted the line. This version does not.
            OSError: The input cannot be read.
        """
        offset, length, _ = self._entry(place)
        file = self.open_input()
        file.seek(offset)
        return parse_line(file.read(length))

    def custom_id(self, place: int) -> str | None:
        """Return the ``custom_id`` of a line; None if it cannot be read.

        Raises:
            OSError: The input cannot be read.
        """
        try:
            return self.line(place).custom_id
        except BadLine as bad:  # the plan was made by a version that accepted the line
            return bad.custom_id

    def close(self) -> None:
        self._index.close()
        if self._input is not None:
            self._input.close()

    def _entry(self, place: int) -> tuple[int, int, int]:
        self._index.seek(place * _ENTRY.size)
        offset, length, number = _ENTRY.unpack(self._index.read(_ENTRY.size))
        return offset, length, number


def read_faults(folder: Path) -> Iterator[LineFault]:
    """Yield the faults of a job's invalid lines, in the order of the lines. ``folder`` is the job's working folder."""
    with (folder / FAULTS).open("rb") as file:
        for line in file:  # one fault, or all of them if an older version has prepared the job
            yield from msgspec.json.decode(b"[%s]" % line.strip(b"[],\n"), type=list[LineFault])
