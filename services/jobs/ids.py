"""Ids of jobs, and of the requests that a job submits.

A request's id consists of the job's id, the position of the line in the order of submission, and a number: 1 for the
first request of the line, 2 for its first repetition, and so on.
"""

from typing import Final, NamedTuple

from schemas.ids import uuid7

BATCH_PREFIX: Final = "batch_"
FILE_PREFIX: Final = "file-"
JOB_CHARS: Final = 26
"""Length of the prefix, in characters, that the request ids of a job share."""

_LOW_BITS: Final = 40
"""Number of low bits of a request id that contain the attempt (8 bits) and the line's position (32 bits)."""


class LineRequest(NamedTuple):
    """The parts of the id of a job's request.

    Attributes:
        job: The prefix that all request ids of the job have in common.
        line: The line's position in the order of submission, from 0.
        attempt: 1 for the first request of the line, 2 for its first repetition, and so on.
    """

    job: str
    line: int
    attempt: int


def new_batch_id(now_ms: int, random_bits: int) -> str:
    """Return the id of a new job. ``random_bits`` is a random number of 34 bits."""
    return BATCH_PREFIX + uuid7(now_ms, random_bits << _LOW_BITS).replace("-", "")


def job_of(batch_id: str) -> str:
    """Return the prefix that the ids of all requests of the job ``batch_id`` have in common."""
    digits = batch_id.removeprefix(BATCH_PREFIX)
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:22]))


def line_request_id(batch_id: str, line: int, attempt: int) -> str:
    """Return the id of a request for a line of the job ``batch_id``.

    ``line`` is the line's position in the order of submission, from 0. ``attempt`` is 1 for the first request of the
    line, 2 for its first repetition, and so on.
    """
    return f"{job_of(batch_id)}{attempt:02x}{line:08x}"


def parse_request_id(request_id: str) -> LineRequest:
    """Split the id of a job's request into its parts. The format of the id is not checked."""
    return LineRequest(request_id[:JOB_CHARS], int(request_id[28:], 16), int(request_id[26:28], 16))


def created_s(batch_id: str) -> int:
    """Return the time at which the job ``batch_id`` was created, in seconds since the epoch. The id contains it."""
    return int(batch_id.removeprefix(BATCH_PREFIX)[:12], 16) // 1_000


def output_file_id(batch_id: str) -> str:
    return f"{FILE_PREFIX}{batch_id.removeprefix(BATCH_PREFIX)}o"


def error_file_id(batch_id: str) -> str:
    return f"{FILE_PREFIX}{batch_id.removeprefix(BATCH_PREFIX)}e"
