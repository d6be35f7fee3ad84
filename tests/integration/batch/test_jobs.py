"""Test whole jobs: each line gets one result, in the order of the input, even if some lines are wrong."""

import asyncio
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from schemas.side_events import Cancel
from tests.integration.batch.lab import BATCH_ID, line, lines, rows
from tests.support.processes import free_port
from tests.support.waiting import until, wait_until


async def test_every_line_has_one_result_in_the_order_of_the_input(lab):
    await lab.tree()
    end = await lab.end(await lab.submit(lines(60)))
    assert (end.outcome, end.totals.lines, end.totals.completed, end.totals.failed) == ("completed", 60, 60, 0)
    found = rows(lab.file(end.output_file))
    assert [row["custom_id"] for row in found] == [f"id-{n}" for n in range(60)]
    body = found[0]["response"]["body"]
    assert body["choices"][0]["message"]["content"]
    assert body["usage"]["completion_tokens"] == 4
    assert found[0]["error"] is None
    assert end.error_file is None
    assert len(lab.submitted()) == len(set(lab.submitted())) == 60


async def test_a_bad_line_has_its_own_error_and_the_others_run(lab):
    await lab.tree()
    content = b"".join(
        [line("a", "One?"), b"not json\n", line("b", "Two?", tools=[{}]), b"\n", line("c", "Three?", model="nobody")]
    )
    end = await lab.end(await lab.submit(content))
    assert (end.totals.lines, end.totals.completed, end.totals.failed) == (4, 1, 3)
    assert [row["custom_id"] for row in rows(lab.file(end.output_file))] == ["a"]
    errors = {row["error"]["line"]: row for row in rows(lab.file(end.error_file))}
    assert list(errors) == [2, 3, 5]
    assert errors[2]["error"]["code"] == "invalid_json_line"
    assert (errors[3]["error"]["code"], errors[3]["custom_id"]) == ("unsupported_parameter", "b")
    assert (errors[5]["error"]["code"], errors[5]["error"]["param"]) == ("bad_request", "model")


async def test_a_custom_id_that_is_there_twice_runs_nothing(lab):
    await lab.tree()
    end = await lab.end(await lab.submit(line("a", "One?") + line("b", "Two?") + line("a", "Three?")))
    assert end.outcome == "failed"
    assert [(fault.code, fault.line) for fault in end.faults] == [("duplicate_custom_id", 3)]
    assert "line 1" in end.faults[0].message
    assert not lab.submitted()


async def test_a_line_whose_engine_failed_is_tried_again_and_not_for_ever(lab):
    await lab.tree(RAILBUS_BATCH_RETRIES="0")
    end = await lab.end(await lab.submit(line("a", "One?", model="simulated-n20-die2"), line_attempts=2))
    assert (end.totals.completed, end.totals.failed) == (0, 1)
    assert rows(lab.file(end.error_file))[0]["error"]["code"] in {"unavailable", "internal"}
    assert len(set(lab.submitted())) == 2


async def test_a_job_is_paused_and_resumed(lab):
    await lab.tree()
    batch_id = await lab.submit(lines(200, model="simulated-n4-slow500"), window_open=8)  # takes over 12 s
    await lab.until(lambda: lab.done(batch_id) >= 8)
    await lab.control(batch_id, "pause")
    await lab.until(lambda: lab.done(batch_id) == len(set(lab.submitted())))
    paused_at = len(set(lab.submitted()))
    assert paused_at < 200
    await lab.control(batch_id, "resume")
    end = await lab.end(batch_id)
    assert end.totals.completed == 200
    assert len(set(lab.submitted())) == 200


async def test_a_cancelled_job_keeps_what_is_done_and_says_so_of_the_rest(lab):
    await lab.tree()
    batch_id = await lab.submit(lines(30, model="simulated-n4") + line("mute", "Never?", model="simulated-mute"))
    await lab.until(lambda: lab.done(batch_id) == 30)
    await lab.control(batch_id, "cancel")
    end = await lab.end(batch_id)
    assert (end.outcome, end.totals.completed, end.totals.failed) == ("cancelled", 30, 1)
    assert lab.written(Cancel)
    error = rows(lab.file(end.error_file))[0]
    assert (error["custom_id"], error["error"]["code"]) == ("mute", "batch_cancelled")


async def test_a_job_whose_time_is_over_gives_its_open_lines_up(lab):
    await lab.tree()
    content = line("done", "Yes?") + line("mute", "Never?", model="simulated-mute")
    end = await lab.end(await lab.submit(content, completion_ms=12_000))
    assert (end.outcome, end.totals.completed, end.totals.failed) == ("expired", 1, 1)
    assert rows(lab.file(end.error_file))[0]["error"]["code"] == "batch_expired"


async def test_no_working_files_stay(lab):
    await lab.tree()
    await lab.end(await lab.submit(lines(3)))
    # Not `lab.until`, which checks only when there are new records, and the end of the job was the last record.
    await until(lambda: not any(lab.store.work_folder(BATCH_ID).iterdir()), "the working files are gone", every_s=0.1)


async def test_a_scrape_says_how_the_jobs_are(lab):
    port = free_port()
    for module in ("services.router", "services.generator"):
        await lab.start(module).ready()
    await lab.run(**lab.where, RAILBUS_HEALTH_PORT=str(port))
    content = lines(30) + line("mute", "Never?", model="simulated-mute") + line("bad", "No?", model="nobody")
    batch_id = await lab.submit(content, window_open=7)

    def scraped():
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as response:
            families = text_string_to_metric_families(response.read().decode())
        samples = [sample for family in families for sample in family.samples if "_batch_" in sample.name]
        return {" ".join((each.name, *each.labels.values())): each.value for each in samples}

    async def shows(**expected):
        found = {name.replace("__", " "): value for name, value in expected.items()}
        await asyncio.to_thread(wait_until, lambda: found.items() <= scraped().items(), f"a scrape has {found}", 90)

    await shows(
        railbus_batch_jobs__in_progress=1, railbus_batch_lines_total__completed=30, railbus_batch_lines_total__failed=1,
        railbus_batch_lines_left=1, railbus_batch_lines_open=1, railbus_batch_window=7,
    )  # fmt: skip
    now = scraped()
    assert now["railbus_batch_oldest_job_seconds"] > 0
    assert 0 < now["railbus_batch_time_used"] < 0.1
    await lab.control(batch_id, "cancel")
    await lab.end(batch_id)
    await shows(
        railbus_batch_jobs__in_progress=0, railbus_batch_jobs__cancelling=0, railbus_batch_lines_total__failed=2,
        railbus_batch_lines_left=0, railbus_batch_lines_open=0, railbus_batch_window=0,
        railbus_batch_oldest_job_seconds=0, railbus_batch_time_used=0,
    )  # fmt: skip


async def test_a_host_whose_clock_is_a_day_ahead_does_not_expire_a_job(lab):
    for module in ("services.router", "services.generator"):
        await lab.start(module).ready()
    await lab.start("tests.support.skewed", "90000", "services.batch", **lab.where).ready()
    end = await lab.end(await lab.submit(lines(3)))
    assert (end.outcome, end.totals.completed) == ("completed", 3)


async def test_a_host_whose_clock_is_a_day_behind_expires_a_job_in_time(lab):
    for module in ("services.router", "services.generator"):
        await lab.start(module).ready()
    await lab.start("tests.support.skewed", "-90000", "services.batch", **lab.where).ready()
    end = await lab.end(await lab.submit(lines(1, model="simulated-mute"), completion_ms=1_000))
    assert end.outcome == "expired"
