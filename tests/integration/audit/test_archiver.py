"""Test that an archive has each record of the log exactly once, even if archivers are killed or several of them run."""

import asyncio
import os
import random
import re
import signal
from contextlib import asynccontextmanager

import aiohttp
import pytest

from tests.integration.audit.lab import places
from tests.support.processes import free_port
from tests.support.waiting import until

pytest.importorskip("pyarrow")

KILLS = int(os.environ.get("RAILBUS_ARCHIVER_KILLS", "3"))
"""How often a test kills the archiver. 50 kills take two minutes."""


async def whole(lab, within_s=90.0):
    """Wait until the archive has as many records as the log, and check that the records are the same, byte for byte."""
    logged = await lab.on_log()
    await until(lambda: lab.count() >= len(logged), "everything is archived", within_s=within_s, every_s=0.1)
    archived = lab.archived()
    assert max(places(archived).values()) == 1
    assert sorted(archived) == sorted(logged)


async def test_every_record_is_archived_as_it_is_on_the_log(lab):
    archiver = lab.archiver()
    await archiver.ready()
    await lab.ask(5)
    await whole(lab)
    assert await archiver.stop() == 0
    keyed = [record for record in lab.archived() if record.topic == "railbus.streams"]
    assert {record.headers[0][0] for record in keyed} == {"kind"}
    assert (lab.folder / "key.pem").stat().st_mode & 0o777 == 0o600
    assert not list((lab.archive_folder / "tmp").iterdir())


async def test_what_waits_is_written_at_the_end(lab):
    from services.audit.buffer import UNIT_BYTES, units_of

    port = free_port()
    archiver = lab.archiver(RAILBUS_AUDIT_FLUSH_MS="3600000", RAILBUS_HEALTH_PORT=str(port))
    await archiver.ready()
    await lab.ask(3)
    logged = await lab.on_log()

    async def waits():
        async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{port}/metrics") as answer:
            (held,) = re.findall(r"^railbus_audit_buffered_bytes (\S+)", await answer.text(), re.MULTILINE)
        return float(held) == sum(map(units_of, logged)) * UNIT_BYTES

    await until(waits, "everything was read", every_s=0.1)
    assert lab.count() == 0, "nothing is written before the end"
    assert await archiver.stop() == 0
    assert places(lab.archived()) == places(logged)


async def test_a_restart_keeps_anchors_of_this_archive_alone(lab):
    from services.archive.checkpoint import anchors_json
    from services.archive.keys import Verifier
    from services.archive.verify import read_anchors, verify
    from tests.support.archives import make_archive, stored
    from tests.support.request_events import RequestEvents

    before = make_archive(lab.folder / "before", stored([RequestEvents().request], "railbus.dead"))
    key = before.public_pem
    file = lab.folder / "anchors.jsonl"
    file.write_bytes(anchors_json(verify(before, Verifier([key])).heads.values()))
    for requests in (10, 1):
        archiver = lab.archiver(RAILBUS_AUDIT_KEY=str(lab.folder / "before.pem"))
        await archiver.ready()
        await lab.ask(requests)
        await whole(lab)
        assert await archiver.stop() == 0

        anchors = read_anchors(file.read_bytes())
        outcome = verify(lab.archive(), Verifier([key]), anchors)
        assert outcome.count == 0
        ends = {place: head.end for place, head in outcome.heads.items()}
        assert {(each.topic, each.partition): each.end for each in anchors} == ends


@pytest.mark.slow
async def test_kills_leave_no_gap_and_no_record_twice(lab):
    rng = random.Random(7)
    archiver = lab.archiver()
    await archiver.ready()
    async with _writing_all_the_time(lab):
        for number in range(KILLS):
            await asyncio.sleep(rng.uniform(0.0, 1.0))
            archiver.kill()
            archived = lab.count()
            archiver = lab.archiver()
            if number % 3 < 2:
                await archiver.ready()
                await until(lambda before=archived: lab.count() > before, "it goes on", every_s=0.05)
            else:
                await asyncio.sleep(rng.uniform(0.5, 3.0))  # killed while it starts, or while it joins
    await archiver.ready()
    await whole(lab)


@pytest.mark.slow
async def test_two_archivers_one_of_them_paused_and_then_killed(lab):
    first, second = lab.archiver(), lab.archiver()
    await first.ready()
    await second.ready()
    async with _writing_all_the_time(lab):
        await asyncio.sleep(0.5)
        first.signal(signal.SIGSTOP)  # it loses its partitions, and does not know
        await asyncio.sleep(3.5)
        first.signal(signal.SIGCONT)
        await asyncio.sleep(1.0)
        third = lab.archiver()
        await third.ready()
        second.kill()
        await asyncio.sleep(0.5)
    await whole(lab)


async def test_two_independent_archivers_write_no_record_twice(lab, tmp_path):
    """If two archivers write the same partition at the same time, each record is archived once.

    This happens if one of them does not know yet that the other has taken over the partition.
    """
    from services.archive.chain import ArchivedRecord
    from services.archive.keys import Signer
    from services.archive.reader import begin_archive
    from services.archive.records import query_fields
    from services.archive.store import Store
    from services.archive.writer import Conflict, PartitionWriter

    await lab.ask(4)
    streams = [record for record in await lab.on_log() if record.topic == "railbus.streams"]
    records = [record for record in streams if record.partition == streams[0].partition]
    signer = Signer.load_or_create(lab.folder / "key.pem")
    store = Store(str(lab.archive_folder))
    begin_archive(store, signer.public_pem)
    writers = [PartitionWriter(store, signer, "railbus.streams", records[0].partition) for _ in range(2)]
    rng = random.Random(3)
    conflicts = 0
    for writer in writers:
        writer.open()
    while any(writer.state.end < len(records) for writer in writers):
        writer = rng.choice(writers)
        if not (rest := records[writer.state.end :][: rng.randint(1, 5)]):
            continue
        try:
            writer.append(writer.state.end, [ArchivedRecord(record, query_fields(record)) for record in rest])
        except Conflict:
            conflicts += 1
    assert conflicts
    assert lab.archived() == records


@asynccontextmanager
async def _writing_all_the_time(lab):
    """Write requests all the time within the ``with`` block, and then wait until the broker has acknowledged them."""
    over = asyncio.Event()

    async def write():
        while not over.is_set():
            await lab.ask(3)
            await asyncio.sleep(0.02)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(write())
        try:
            yield
        finally:
            over.set()
