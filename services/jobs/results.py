"""Write the result files of a job from its part files. A part file has the results of some lines of the job."""

import contextlib
import heapq
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, Final

import orjson

from schemas.batches import BatchOutcome, ResultPart
from services.jobs.ids import error_file_id, output_file_id
from services.jobs.prepare import JobLines, read_faults
from services.jobs.result_lines import LineError, result_line
from services.jobs.store import JobStore

_NONE: Final = 2**64 - 1
_SEPARATOR: Final = b"\t"


def part_record(place: int, *, is_answer: bool, line: bytes) -> bytes:
    """Encode the result ``line`` as a record of a part file.

    ``place`` is the position of its input line in the order of submission, from 0.
    """
    return b"%d%s%d%s%s" % (place, _SEPARATOR, is_answer, _SEPARATOR, line)


def part_records(file: BinaryIO, length: int) -> Iterator[tuple[int, bool, int, bytes]]:
    """Yield (place, is_answer, offset, result) for each record in the first ``length`` bytes of a part file.

    ``place`` is the input line's position in the order of submission. ``is_answer`` is false if the result is an error.
    ``offset`` is where the result begins in the file.
    """
    offset = 0
    while offset < length:
        raw = file.readline()
        place, is_answer, line = raw.split(_SEPARATOR, 2)
        yield int(place), is_answer == b"1", offset + len(raw) - len(line), line
        offset += len(raw)


@dataclass(frozen=True, slots=True)
class ResultFiles:
    """The result files of a job.

    Attributes:
        output_file: Id of the file with the answers; None if there is no answer.
        error_file: Id of the file with the errors; None if there is no error.
        completed: Number of lines with an answer.
        failed: Number of lines without an answer, including invalid lines.
    """

    output_file: str | None
    error_file: str | None
    completed: int
    failed: int


def write_results(
    store: JobStore, batch_id: str, input_file: str, *, tenant: str, parts: Sequence[ResultPart], good: int,
    outcome: BatchOutcome, now_s: int,
) -> ResultFiles:  # fmt: skip
    """Write the result files of a job. Every line of the input gets one result, in the order of the input.

    If no part file has a result for a line, the result of the line is an error. ``good`` is the number of valid lines.
    """
    folder = store.work_folder(batch_id)
    where = array("Q", [_NONE]) * good  # index of the part file, and offset of the result in it
    answered = bytearray(good)
    with ExitStack() as stack:
        lines = stack.enter_context(contextlib.closing(JobLines(store, batch_id, input_file)))
        files = [stack.enter_context((folder / part.name).open("rb")) for part in parts]
        for number, (part, file) in enumerate(zip(parts, files, strict=True)):
            for place, is_answer, offset, _ in part_records(file, part.length):
                where[place] = number << 44 | offset
                answered[place] = is_answer
        by_number = sorted(range(good), key=array("L", (lines.number(place) for place in range(good))).__getitem__)

        def result(place: int) -> bytes:
            if where[place] == _NONE:
                return _given_up(lines, batch_id, place, outcome)
            file = files[where[place] >> 44]
            file.seek(where[place] & (1 << 44) - 1)
            return file.readline()

        answers = [place for place in by_number if answered[place]]
        errors = _errors(batch_id, folder, lines, [place for place in by_number if not answered[place]], result)
        named = {"tenant": tenant, "purpose": "batch_output", "created_s": now_s}
        output = _write(store, output_file_id(batch_id), f"{batch_id}_output.jsonl", map(result, answers), named)
        error = _write(store, error_file_id(batch_id), f"{batch_id}_error.jsonl", errors, named)
    failed = good - len(answers) + sum(1 for _ in read_faults(folder))
    return ResultFiles(output, error, len(answers), failed)


def _write(store: JobStore, file_id: str, filename: str, lines: Iterator[bytes], named: dict[str, Any]) -> str | None:
    first = next(lines, None)
    if first is None:
        return None
    with store.writing(file_id, filename=filename, **named) as file:
        file.write(first)
        for line in lines:
            file.write(line)
    return file_id


def _errors(
    batch_id: str, folder: Path, lines: JobLines, places: Sequence[int], result: Callable[[int], bytes]
) -> Iterator[bytes]:
    bad = ((fault.line or 0, _fault_line(batch_id, fault)) for fault in read_faults(folder))
    good = ((lines.number(place), result(place)) for place in places)
    return (line for _, line in heapq.merge(bad, good, key=itemgetter(0)))


def _fault_line(batch_id: str, fault: Any) -> bytes:
    error = {"code": fault.code, "message": fault.message, "param": fault.param, "line": fault.line}
    named = {"id": f"batch_req_{batch_id.removeprefix('batch_')}_{fault.line}", "custom_id": fault.custom_id}
    return orjson.dumps({**named, "response": None, "error": error}) + b"\n"


def _given_up(lines: JobLines, batch_id: str, place: int, outcome: BatchOutcome) -> bytes:
    code = "batch_expired" if outcome == "expired" else "batch_cancelled"
    message = "The batch expired before this line was done." if outcome == "expired" else "The batch was cancelled."
    try:
        custom_id = lines.custom_id(place)
    except FileNotFoundError:  # somebody has deleted the input; the number says which line it was
        custom_id = None
    return result_line(batch_id, place, 1, lines.number(place), custom_id, LineError(code=code, message=message))
