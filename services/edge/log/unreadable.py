"""Who cannot read what takes text back stops showing.

A newer version takes text back in a newer version of ``Recall``, never by a new kind: an older edge would not know.
"""

from typing import Final

from schemas.stream import Recall
from schemas.wire import KIND_HEADER
from services.bus import UnreadableRecord
from services.edge.errors import ApiError

_RECALL: Final = Recall.__name__.encode()


def takes_text_back(record: UnreadableRecord) -> bool:
    """Return whether a record that cannot be read is a ``Recall``."""
    return (KIND_HEADER, _RECALL) in record.headers


def too_old() -> ApiError:
    """Return the error for a stream that cannot go on here."""
    return ApiError(
        503, "Text of this answer was taken back in a way that this server cannot read: resume at another server.",
        code="recall_unreadable",
    )  # fmt: skip
