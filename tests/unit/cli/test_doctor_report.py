import asyncio
import os
import sys

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from services.cli.commands import doctor
from services.cli.show.doctor_report import DoctorCheck, doctor_report

GOOD = DoctorCheck("aiohttp", good=True, found="3.14", remedy="pip install it", needed=True)
GONE = DoctorCheck("uvloop", good=False, found="not installed", remedy="pip install it", needed=True)
SPARE = DoctorCheck("redis", good=False, found="none", remedy="start one", needed=False)


def test_what_is_good_needs_no_remedy():
    assert doctor_report([GOOD]).splitlines() == ["ok       aiohttp  3.14", "everything needed is here"]


def test_what_is_missing_comes_with_its_remedy():
    lines = doctor_report([GOOD, GONE, SPARE]).splitlines()
    assert lines[1] == "MISSING  uvloop   not installed: pip install it"
    assert lines[2] == "-        redis    none: start one"
    assert lines[3] == "1 thing(s) needed are missing"
    assert [finding.missing for finding in (GOOD, GONE, SPARE)] == [False, True, False]


@pytest.mark.parametrize(
    ("pid_of", "found", "missing"),
    [
        pytest.param(lambda: doctor.NOT_STARTED, "starting", False, id="not started"),
        pytest.param(os.getpid, "starting", False, id="runs"),
        pytest.param(lambda: None, "no answer", True, id="unknown"),
    ],
)
async def test_a_process_that_listens_nowhere_yet_is_starting(pid_of, found, missing):
    check = await doctor._http("batch", "http://127.0.0.1:9", needed=True, pid=pid_of())
    assert (check.found, check.missing) == (found, missing)


async def test_a_process_that_has_ended_gives_no_answer():
    ended = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
    await ended.wait()
    check = await doctor._http("batch", "http://127.0.0.1:9", needed=True, pid=ended.pid)
    assert check.found == "no answer"


@pytest.mark.parametrize(("name", "missing"), [("batch", False), ("ledger", False), ("router", True)])
async def test_a_service_that_no_answer_waits_for_may_still_start(name, missing):
    async def not_ready(_: web.Request) -> web.Response:
        return web.Response(status=503)

    app = web.Application()
    app.router.add_get("/readyz", not_ready)
    async with TestServer(app) as server:
        check = await doctor._http(name, str(server.make_url("/")).rstrip("/"), needed=True, pid=os.getpid())
    assert (check.found, check.missing) == ("HTTP 503", missing)
