"""Convert files and batches to the objects of OpenAI's API, and check the fields of a new batch."""

import re
from collections.abc import Mapping
from typing import Any, Final

from schemas.batches import BatchFinished
from services.edge.errors import ApiError
from services.jobs.job_state import JobState
from services.jobs.lines import ENDPOINT
from services.jobs.store import StoredFile
from services.runtime.settings import parse_count

_WINDOW: Final = re.compile(r"([1-9]\d{0,6})([smhd])")
_UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
MAX_WINDOW_MS: Final = 30 * 86_400_000
MAX_METADATA: Final = 16
MAX_METADATA_KEY, MAX_METADATA_VALUE = 64, 512


def file_object(file: StoredFile) -> dict[str, Any]:
    return {
        "id": file.file_id, "object": "file", "bytes": file.length, "created_at": file.created_s,
        "filename": file.filename, "purpose": file.purpose, "status": "processed",
    }  # fmt: skip


def batch_object(job: JobState) -> dict[str, Any]:
    """Return a batch in the format of OpenAI's API. A paused batch gets the status ``in_progress``."""
    created, end, totals, status = job.created, job.finished, job.totals, job.status
    ended_s = None if job.finished_ms is None else job.finished_ms // 1_000
    return {
        "id": job.batch_id,
        "object": "batch",
        "endpoint": ENDPOINT,
        "errors": _errors(end),
        "input_file_id": created.input_file,
        "completion_window": window_text(created.completion_ms),
        "status": "in_progress" if status == "paused" else status,
        "output_file_id": None if end is None else end.output_file,
        "error_file_id": None if end is None else end.error_file,
        "created_at": job.created_ms // 1_000,
        "in_progress_at": _seconds(job.began_ms),
        "expires_at": job.expires_ms // 1_000,
        "finalizing_at": ended_s if status == "completed" else None,
        "completed_at": ended_s if status == "completed" else None,
        "failed_at": ended_s if status == "failed" else None,
        "expired_at": ended_s if status == "expired" else None,
        "cancelling_at": _seconds(job.cancelled_ms),
        "cancelled_at": ended_s if status == "cancelled" else None,
        "request_counts": {"total": totals.lines, "completed": totals.completed, "failed": totals.failed},
        "metadata": dict(created.metadata) or None,
    }


def page_of(objects: list[dict[str, Any]], query: Mapping[str, str]) -> dict[str, Any]:
    """Return the page of a list that the query parameters ``limit`` and ``after`` select, as in OpenAI's API.

    Raises:
        ApiError: 400, if ``limit`` or ``after`` is not valid.
    """
    limit = parse_count(query.get("limit", "20"), 10_000)
    if limit is None:
        raise ApiError(400, "limit must be a whole number from 1 to 10,000.", code="invalid_value", param="limit")
    after, begin = query.get("after"), 0
    if after:
        places = [place for place, each in enumerate(objects) if each["id"] == after]
        if not places:
            raise ApiError(400, "after must be an id of this list.", code="invalid_value", param="after")
        begin = places[0] + 1
    shown = objects[begin : begin + limit]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": begin + len(shown) < len(objects),
    }


def parse_window(text: Any) -> int:
    """Convert the field ``completion_window`` of a new batch, such as ``24h``, to milliseconds.

    Raises:
        ApiError: 400, if the field is malformed, or is longer than 30 days.
    """
    match = _WINDOW.fullmatch(text) if isinstance(text, str) else None
    found = int(match[1]) * _UNIT_MS[match[2]] if match else 0
    if not 0 < found <= MAX_WINDOW_MS:
        raise ApiError(
            400, "completion_window must be a number with s, m, h or d, such as 24h, at most 30d.",
            code="invalid_value", param="completion_window",
        )  # fmt: skip
    return found


def window_text(window_ms: int) -> str:
    unit = next(unit for unit in ("h", "m", "s") if window_ms % _UNIT_MS[unit] == 0 or unit == "s")
    return f"{max(1, window_ms // _UNIT_MS[unit])}{unit}"


def parse_metadata(value: Any) -> tuple[tuple[str, str], ...]:
    """Convert the field ``metadata`` of a new batch to pairs of key and value.

    Raises:
        ApiError: 400, if the field does not have the form that OpenAI's API prescribes.
    """
    if value is None:
        return ()
    if not isinstance(value, dict) or len(value) > MAX_METADATA:
        raise _bad_metadata()
    for key, text in value.items():
        if not isinstance(text, str) or not 0 < len(key) <= MAX_METADATA_KEY or len(text) > MAX_METADATA_VALUE:
            raise _bad_metadata()
    return tuple(value.items())


def _bad_metadata() -> ApiError:
    return ApiError(
        400, "metadata may have 16 texts of at most 512 characters, under keys of at most 64.", code="invalid_value",
        param="metadata",
    )  # fmt: skip


def _errors(end: BatchFinished | None) -> dict[str, Any] | None:
    if end is None or not end.faults:
        return None
    data = [{"code": f.code, "message": f.message, "param": f.param, "line": f.line} for f in end.faults]
    return {"object": "list", "data": data}


def _seconds(ms: int | None) -> int | None:
    return None if ms is None else ms // 1_000
