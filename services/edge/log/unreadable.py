"""Judge records that this version of the edge cannot decode.

Their headers tell whether an event may remove or replace text that a client already shows.
"""

from typing import Final

from schemas.wire import KIND_HEADER
from services.bus import UnreadableRecord
from services.edge.errors import ApiError

TAKE_TEXT_BACK: Final = frozenset({b"Recall", b"Verdict", b"Cutover"})
"""Kinds of events that can take shown text back. A reader that skipped one would still show that text."""


def takes_text_back(record: UnreadableRecord) -> bool:
    return any(name == KIND_HEADER and kind in TAKE_TEXT_BACK for name, kind in record.headers)


def newer_version() -> ApiError:
    return ApiError(
        503, "The log has a decision about this answer that this server is too old to read: resume at another server.",
        code="newer_version", retry_after_s=1,
    )  # fmt: skip
