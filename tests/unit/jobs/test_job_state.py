"""Test the state of a job after its events, including events that are on the log twice or too late."""

import pytest

from schemas.batches import BatchControl, BatchCreated, BatchFinished, BatchProgress, BatchTotals
from services.jobs import job_state
from services.jobs.ids import new_batch_id
from services.jobs.job_state import Jobs

BATCH_ID = new_batch_id(0, 1)


def about(batch_id=BATCH_ID, tenant="acme"):
    return {"batch_id": batch_id, "tenant": tenant, "at": 0, "source": "test"}


def created(batch_id=BATCH_ID, tenant="acme", **given):
    return BatchCreated(**about(batch_id, tenant), input_file="file-a", **given)


def control(action):
    return BatchControl(**about(), action=action)


def progress(*, completed=0, failed=0, lines=4, epoch=1):
    totals = BatchTotals(lines=lines, completed=completed, failed=failed)
    return BatchProgress(**about(), epoch=epoch, totals=totals)


def fed(*events):
    jobs = Jobs()
    for log_ms, event in enumerate(events, start=1_000):
        jobs.feed(event, log_ms)
    return jobs


def test_a_job_that_is_written_twice_loses_nothing():
    jobs = fed(created(completion_ms=500), progress(), control("cancel"))
    before = jobs.get(BATCH_ID)
    assert jobs.feed(created(completion_ms=900), 9_000) is None
    assert jobs.get(BATCH_ID) is before
    assert (before.created_ms, before.expires_ms) == (1_000, 1_500)


@pytest.mark.parametrize(
    "late",
    [
        control("cancel"),
        control("pause"),
        progress(completed=1, epoch=9),
        BatchFinished(**about(), outcome="failed"),
        created(),
    ],
)
def test_nothing_changes_a_job_that_has_ended(late):
    totals = BatchTotals(lines=4, completed=4)
    jobs = fed(created(), progress(), BatchFinished(**about(), outcome="completed", totals=totals))
    before = jobs.get(BATCH_ID)
    assert jobs.feed(late, 9_000) is None
    assert jobs.get(BATCH_ID) is before
    assert (before.status, before.finished_ms, before.totals) == ("completed", 1_002, totals)
    assert list(jobs.active()) == []


def test_the_times_of_a_job_are_those_of_its_first_events():
    jobs = fed(created(), progress(), progress(completed=1), control("cancel"), control("cancel"))
    job = jobs.get(BATCH_ID)
    assert (job.created_ms, job.began_ms, job.cancelled_ms) == (1_000, 1_001, 1_003)
    assert job.totals.completed == 1


@pytest.mark.parametrize(
    ("events", "status"),
    [
        ([], "validating"),
        ([control("pause")], "validating"),
        ([progress(lines=0)], "validating"),
        ([progress(completed=3)], "in_progress"),
        ([progress(), control("pause")], "paused"),
        ([progress(), control("pause"), control("resume")], "in_progress"),
        ([progress(completed=3, failed=1), control("pause")], "finalizing"),
        ([progress(failed=4)], "finalizing"),
        ([progress(failed=4), control("cancel")], "cancelling"),
        ([control("cancel")], "cancelling"),
    ],
)
def test_the_status_of_a_job_that_has_not_ended(events, status):
    assert fed(created(), *events).get(BATCH_ID).status == status


def test_an_event_of_an_unknown_job_is_ignored():
    jobs = Jobs()
    for event in (control("cancel"), progress(), BatchFinished(**about(), outcome="failed")):
        assert jobs.feed(event, 1) is None
    assert jobs.of_tenant(None) == []


def test_a_tenant_sees_its_own_jobs_newest_first():
    ids = [new_batch_id(0, bits) for bits in range(4)]
    jobs = fed(*(created(each, "other" if n == 1 else "acme") for n, each in enumerate(ids)))
    jobs.feed(BatchControl(**about(ids[0]), action="pause"), 9_000)  # a change moves no job
    assert [job.batch_id for job in jobs.of_tenant("acme")] == [ids[3], ids[2], ids[0]]
    assert [job.batch_id for job in jobs.of_tenant(None)] == ids[::-1]
    assert [job.batch_id for job in jobs.active()] == ids


def test_only_the_jobs_that_ended_last_are_kept(monkeypatch):
    monkeypatch.setattr(job_state, "MOST_FINISHED", 2)
    ids = [new_batch_id(0, bits) for bits in range(5)]
    jobs = fed(*map(created, ids))
    for each in (ids[2], ids[0], ids[3]):
        jobs.feed(BatchFinished(**about(each), outcome="completed"), 9_000)
    assert [job.batch_id for job in jobs.of_tenant(None)] == [ids[4], ids[3], ids[1], ids[0]]
