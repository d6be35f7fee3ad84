"""Records of the stream log that may take text back, and cannot be read here. Pure."""

from typing import Final

from schemas.wire import KIND_HEADER
from services.bus import UnreadableRecord
from services.edge.errors import ApiError

TAKE_TEXT_BACK: Final = frozenset({b"Recall", b"Verdict", b"Cutover"})
"""Kinds that can withdraw text that was shown. A reader that skips one would continue to show it."""


def takes_text_back(record: UnreadableRecord) -> bool:
    """Return whether a client of this request may be shown nothing more."""
    return any(name == KIND_HEADER and kind in TAKE_TEXT_BACK for name, kind in record.headers)


def newer_version() -> ApiError:
    """Return the error that ends such a stream."""
    return ApiError(
        503, "The log has a decision about this answer that this server is too old to read: resume at another server.",
        code="newer_version", retry_after_s=1,
    )  # fmt: skip
