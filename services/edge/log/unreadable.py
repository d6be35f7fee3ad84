"""Records of the stream log that may take text back, and cannot be read here. Pure."""

from typing import Final

from schemas.wire import KIND_HEADER, header
from services.bus import UnreadableRecord
from services.edge.errors import ApiError

TAKE_TEXT_BACK: Final = frozenset({"Recall", "Verdict", "Cutover"})
"""Kinds after which text that was shown may have to go. A reader that skips one goes on showing it."""


def takes_text_back(record: UnreadableRecord) -> bool:
    """Return whether a client of this request may be shown nothing more."""
    kind = header([(name, value) for name, value in record.headers if value is not None], KIND_HEADER)
    return kind is not None and kind in TAKE_TEXT_BACK


def newer_version() -> ApiError:
    """Return the error that ends such a stream."""
    return ApiError(
        503, "The log has a decision about this answer that this server is too old to read: resume at another server.",
        code="newer_version", retry_after_s=1,
    )  # fmt: skip
