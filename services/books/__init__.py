"""The calculations of the ledger. No I/O, no clock.

The ledger joins the ``Account`` event of a request with the request's ``Detached`` events (receipts), and sums the
results by window of time. Events may arrive twice or in any order.
"""

from services.books.attainment import Attainment, attainments
from services.books.config import BooksConfig, Objectives, parse_plain_token_ms
from services.books.entry import Entry, Facts, Receipt, facts_of, receipt_of
from services.books.histogram import RELATIVE_ERROR, Histogram
from services.books.partition import OtherWindowWidth, PartitionBooks, Source, TableChange, newest_of_each
from services.books.report import Row, WindowKey, json_of, json_rows, key_of, merge, newest, table, totals_of_windows
from services.books.totals import Cell, Totals, totals_of

__all__ = [
    "RELATIVE_ERROR",
    "Attainment",
    "BooksConfig",
    "Cell",
    "Entry",
    "Facts",
    "Histogram",
    "Objectives",
    "OtherWindowWidth",
    "PartitionBooks",
    "Receipt",
    "Row",
    "Source",
    "TableChange",
    "Totals",
    "WindowKey",
    "attainments",
    "facts_of",
    "json_of",
    "json_rows",
    "key_of",
    "merge",
    "newest",
    "newest_of_each",
    "parse_plain_token_ms",
    "receipt_of",
    "table",
    "totals_of",
    "totals_of_windows",
]
