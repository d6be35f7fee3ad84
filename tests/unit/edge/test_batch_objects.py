"""Test that batches and lists of batches have the form of OpenAI's API."""

import pytest

from schemas.batches import BatchControl, BatchCreated, BatchFinished, BatchProgress, BatchTotals, LineFault
from services.edge.batches.objects import batch_object, page_of, parse_metadata, parse_window, window_text
from services.edge.errors import ApiError
from services.jobs.ids import new_batch_id
from services.jobs.job_state import Jobs

BATCH_ID = new_batch_id(0, 1)
ABOUT = {"batch_id": BATCH_ID, "tenant": "acme", "at": 0, "source": "test"}
OBJECTS = [{"id": str(n)} for n in range(5)]


def shown(*events, log_ms=1_999_999):
    jobs = Jobs()
    jobs.feed(BatchCreated(**ABOUT, input_file="file-a", completion_ms=7_200_000, metadata=(("k", "v"),)), log_ms)
    for event in events:
        jobs.feed(event, log_ms := log_ms + 10_000)
    return batch_object(jobs.get(BATCH_ID))


@pytest.mark.parametrize(
    ("query", "ids", "more"),
    [
        ({}, "01234", False),
        ({"limit": "2"}, "01", True),
        ({"limit": "2", "after": "1"}, "23", True),
        ({"limit": "2", "after": "2"}, "34", False),
        ({"after": "4"}, "", False),
        ({"limit": "5"}, "01234", False),
    ],
)
def test_a_page_begins_after_the_last_of_the_page_before(query, ids, more):
    page = page_of(OBJECTS, query)
    assert ("".join(each["id"] for each in page["data"]), page["has_more"]) == (ids, more)
    assert (page["first_id"], page["last_id"]) == ((ids[0], ids[-1]) if ids else (None, None))


@pytest.mark.parametrize("query", [{"limit": "0"}, {"limit": "10001"}, {"limit": "x"}, {"after": "9"}])
def test_a_page_that_is_none_is_refused(query):
    with pytest.raises(ApiError) as refused:
        page_of(OBJECTS, query)
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("text", "ms", "back"),
    [("24h", 86_400_000, "24h"), ("90m", 5_400_000, "90m"), ("60m", 3_600_000, "1h"), ("45s", 45_000, "45s"),
     ("30d", 2_592_000_000, "720h")],
)  # fmt: skip
def test_a_window(text, ms, back):
    assert parse_window(text) == ms
    assert window_text(ms) == back


@pytest.mark.parametrize("text", ["31d", "721h", "0h", "h", "1", "1w", "-1h", "1.5h", " 1h", None, 24])
def test_what_is_no_window(text):
    with pytest.raises(ApiError):
        parse_window(text)


def test_metadata_has_the_limits_of_the_api():
    most = {f"{n:064}": "v" * 512 for n in range(16)}
    assert parse_metadata(most) == tuple(most.items())
    assert parse_metadata(None) == ()
    for wrong in ([], most | {"more": "v"}, {"k" * 65: "v"}, {"": "v"}, {"k": "v" * 513}, {"k": 1}):
        with pytest.raises(ApiError):
            parse_metadata(wrong)


def test_a_new_batch():
    found = shown()
    assert (found["status"], found["completion_window"], found["metadata"]) == ("validating", "2h", {"k": "v"})
    assert (found["created_at"], found["expires_at"], found["in_progress_at"]) == (1_999, 9_199, None)
    assert (found["errors"], found["output_file_id"], found["error_file_id"]) == (None, None, None)


def test_a_paused_batch_is_in_progress():
    totals = BatchTotals(lines=4, completed=1, failed=2)
    found = shown(BatchProgress(**ABOUT, epoch=1, totals=totals), BatchControl(**ABOUT, action="pause"))
    assert (found["status"], found["in_progress_at"]) == ("in_progress", 2_009)
    assert found["request_counts"] == {"total": 4, "completed": 1, "failed": 2}


@pytest.mark.parametrize("outcome", ["completed", "failed", "expired", "cancelled"])
def test_a_batch_that_has_ended_says_when_and_how(outcome):
    fault = LineFault(code="c", message="m", line=3, param="p")
    end = BatchFinished(**ABOUT, outcome=outcome, output_file="file-o", error_file="file-e", faults=(fault,))
    found = shown(BatchControl(**ABOUT, action="cancel"), end)
    ends = {name: found[f"{name}_at"] for name in ("completed", "failed", "expired", "cancelled")}
    assert ends == {name: 2_019 if name == outcome else None for name in ends}
    assert (found["status"], found["cancelling_at"]) == (outcome, 2_009)
    assert (found["output_file_id"], found["error_file_id"]) == ("file-o", "file-e")
    assert found["errors"]["data"] == [{"code": "c", "message": "m", "param": "p", "line": 3}]
