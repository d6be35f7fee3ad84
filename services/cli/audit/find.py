"""Search for requests in an archive or in a list of records, with DuckDB."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from services.archive.chain import ArchivedRecord
from services.archive.extras import need
from services.archive.reader import Archive, UnreadableFile
from services.archive.records import query_fields, table_of
from services.bus import StoredRecord

MAX_FOUND: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Search conditions. A condition whose value is None is not applied. Times are in milliseconds since the epoch."""

    from_ms: int
    to_ms: int  # the request's first record since from_ms is before this
    tenant: str | None = None
    outcome: str | None = None
    rule: str | None = None
    category: str | None = None
    text: str | None = None  # in the prompt or the answer, ignoring case
    most: int = 100


class ArchivedRequest(NamedTuple):
    """A request that was found by a search.

    Attributes:
        outcome: How the request ended; None if the searched records do not say it.
    """

    first_ms: int
    request_id: str
    tenant: str | None
    outcome: str | None
    events: int
    rules: list[str]
    categories: list[str]


_QUERY: Final = """
WITH told AS (
  SELECT *, TRY(decode(value)::JSON) AS event FROM log
  WHERE request_id IS NOT NULL AND timestamp_ms >= $from_ms
), one AS (
  SELECT request_id,
    min(timestamp_ms) AS first_ms,
    any_value(tenant) AS tenant,
    coalesce(
      any_value(event->>'outcome') FILTER (kind = 'Account'),
      arg_min(event->>'outcome', "offset") FILTER (kind = 'Closed')
    ) AS outcome,
    count(*) AS events,
    list_sort(list(DISTINCT event->>'rule') FILTER (kind = 'Recall')) AS rules,
    list_sort(list(DISTINCT event->>'category') FILTER (kind = 'Recall')) AS categories
  FROM told GROUP BY request_id
)
SELECT first_ms, request_id, tenant, outcome, events, coalesce(rules, []), coalesce(categories, []) FROM one
WHERE first_ms < $to_ms
  AND ($tenant IS NULL OR tenant = $tenant)
  AND ($outcome IS NULL OR outcome = $outcome)
  AND ($rule IS NULL OR list_contains(rules, $rule))
  AND ($category IS NULL OR list_contains(categories, $category))
  AND ($text IS NULL OR request_id IN (
    SELECT request_id FROM told WHERE kind = 'Chunk' AND $text IS NOT NULL
    GROUP BY request_id, event->>'attempt', event->>'run'
    HAVING contains(lower(string_agg(event->>'text', '' ORDER BY (event->>'seq')::BIGINT)), lower($text))
    UNION
    SELECT request_id FROM told WHERE kind = 'Request' AND $text IS NOT NULL
      AND contains(lower(array_to_string(event->>'$.messages[*].content', ' ')), lower($text))
  ))
ORDER BY first_ms, request_id LIMIT $most
"""


def find_in_archive(archive: Archive, wanted: Wanted) -> list[ArchivedRequest]:
    """Search the files of an archive. Encrypted texts are not searched."""
    pa, dataset, duckdb = need("pyarrow"), need("pyarrow.dataset"), need("duckdb")
    files = [archive.store.path(file.path) for file in archive.files(from_ms=wanted.from_ms)]
    if not files:
        return []
    try:
        return _run(dataset.dataset(files, filesystem=archive.store.filesystem, format="parquet"), wanted)
    except (pa.ArrowException, OSError, duckdb.InvalidInputException) as error:
        raise UnreadableFile(archive.store.location, error) from None


def find_in_records(records: Iterable[StoredRecord], wanted: Wanted) -> list[ArchivedRequest]:
    held = [ArchivedRecord(record, query_fields(record)) for record in records]
    return _run(table_of(held, [bytes(32)] * len(held)), wanted)


def _run(log: Any, wanted: Wanted) -> list[ArchivedRequest]:
    connection = need("duckdb").connect()
    try:
        connection.execute("SET threads = 2")
        connection.register("log", log)
        limits = {"most": min(wanted.most, MAX_FOUND), "from_ms": wanted.from_ms, "to_ms": wanted.to_ms}
        texts = {name: getattr(wanted, name) for name in ("tenant", "outcome", "rule", "category", "text")}
        return [ArchivedRequest(*row) for row in connection.execute(_QUERY, limits | texts).fetchall()]
    finally:
        connection.close()
