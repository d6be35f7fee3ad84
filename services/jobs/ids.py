"""Ids of jobs and of their requests. Pure.

A request's id is the job's id with the line and the attempt in its last digits. So the id of a line's request is known
before the request is written. A service that was killed between writing a request and noting it finds the request on
the log by its id. A service that writes the same request twice has written one request. The id's time is the job's.
"""

from typing import Final, NamedTuple

from schemas.ids import uuid7

BATCH_PREFIX: Final = "batch_"
FILE_PREFIX: Final = "file-"
JOB_CHARS: Final = 26
"""Number of first characters of a request id that are the same for a whole job."""

_LOW_BITS: Final = 40
"""Number of low bits of an id that hold the attempt (8) and the line (32)."""


class LineRequest(NamedTuple):
    """Which request of a job this is: ``line`` counts from 0 in the order of submission, ``attempt`` from 1."""

    job: str
    line: int
    attempt: int


def new_batch_id(now_ms: int, random_bits: int) -> str:
    """Return the id of a new job, from the time and 34 random bits."""
    return BATCH_PREFIX + uuid7(now_ms, random_bits << _LOW_BITS).replace("-", "")


def job_of(batch_id: str) -> str:
    """Return the common prefix of the ids of a job's requests."""
    digits = batch_id.removeprefix(BATCH_PREFIX)
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:22]))


def line_request_id(batch_id: str, line: int, attempt: int) -> str:
    """Return the id of a line's request."""
    return f"{job_of(batch_id)}{attempt:02x}{line:08x}"


def parse_request_id(request_id: str) -> LineRequest:
    """Return the line and attempt that a request id stands for, if its job is known."""
    return LineRequest(request_id[:JOB_CHARS], int(request_id[28:], 16), int(request_id[26:28], 16))


def created_s(batch_id: str) -> int:
    """Return when the job was made, in seconds since the epoch."""
    return int(batch_id.removeprefix(BATCH_PREFIX)[:12], 16) // 1_000


def output_file_id(batch_id: str) -> str:
    return f"{FILE_PREFIX}{batch_id.removeprefix(BATCH_PREFIX)}o"


def error_file_id(batch_id: str) -> str:
    return f"{FILE_PREFIX}{batch_id.removeprefix(BATCH_PREFIX)}e"
