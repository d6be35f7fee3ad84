"""Judge whether the edge may skip a record that it cannot decode.

The headers of the record name the kind of the event. If events of this kind can take shown text back, the edge must not
skip the record, because the client would still show the text. Instead, the client gets the error ``newer_version``. It
can resume at an edge with a newer version.
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
