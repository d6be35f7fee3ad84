"""Test that an archiver becomes unready if it cannot write.

Also test what happens to buffered records that are no longer on the log. If retention deleted them, the archiver keeps
them. If the broker lost the end of the log, the archiver discards them.
"""

import asyncio
import errno
import shutil
from functools import partial
from types import SimpleNamespace

import pytest

from services.archive.checkpoint import anchors_json
from services.archive.keys import Verifier
from services.archive.verify import verify
from services.audit import __main__ as program
from services.audit import service as audit_service
from services.audit.buffer import DAY_MS, PartitionBuffer
from services.audit.settings import Settings
from services.bus import BusSettings, StoredRecord
from services.runtime.settings import load_settings
from tests.support.archives import make_archive
from tests.support.waiting import until

pytest.importorskip("pyarrow")


def where(folder, key="key.pem"):
    return {"RAILBUS_ARCHIVE": str(folder / "archive"), "RAILBUS_AUDIT_KEY": str(folder / key)}


async def test_an_archiver_that_cannot_write_for_long_is_not_ready(tmp_path, monkeypatch):
    monkeypatch.setattr(audit_service, "STALE_S", 0.05, raising=False)
    monkeypatch.setattr(audit_service, "RETRY_S", (0.05,))
    archiver = audit_service.ArchiveService(load_settings(Settings, where(tmp_path)), BusSettings(), lambda: None)
    archiver._group = SimpleNamespace(joined=True)
    archiver._held = frozenset({("railbus.streams", 0)})

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(audit_service.PartitionWriter, "open", full)
    following = asyncio.create_task(archiver._follow(("railbus.streams", 0)))
    archiver._buffers = dict.fromkeys(archiver._held)
    await asyncio.sleep(0)
    assert archiver.ready
    await until(lambda: not archiver.ready, "it stays ready", within_s=10)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    assert archiver.ready


async def test_a_busy_partition_does_not_keep_the_others_waiting(tmp_path):
    """One call of ``_write`` writes only the records that were buffered when it began, however many arrive."""
    archiver = audit_service.ArchiveService(load_settings(Settings, where(tmp_path)), BusSettings(), lambda: None)
    place = ("railbus.streams", 0)
    archiver._buffers[place] = buffer = PartitionBuffer(0)
    written = []

    def append(start, records):
        written.append([each.record.offset for each in records])
        if buffer.next_offset < 50:
            buffer.add(StoredRecord(*place, buffer.next_offset, 1, None, b"{}", ()), 7)
        return SimpleNamespace(count=len(records))

    archiver._writers[place] = SimpleNamespace(append=append)
    for offset in range(3):
        buffer.add(StoredRecord(*place, offset, DAY_MS * (offset // 2), None, b"{}", ()), 7)
    await archiver._write(place)
    assert written == [[0, 1], [2]]
    assert len(buffer) == 2


@pytest.mark.parametrize("gone", ["archive.json", "everything"])
def test_anchors_are_kept_if_only_the_description_of_the_archive_is_gone(tmp_path, gone):
    archive = make_archive(tmp_path / "archive", [StoredRecord("railbus.dead", 0, 0, 1, None, b"{}", ())])
    anchors = tmp_path / "anchors.jsonl"
    kept = anchors_json(verify(archive, Verifier([archive.public_pem])).heads.values())
    anchors.write_bytes(kept)
    if gone == "everything":
        shutil.rmtree(tmp_path / "archive")
    else:
        (tmp_path / "archive" / gone).unlink()
    named = where(tmp_path, key="archive.pem") | {"RAILBUS_AUDIT_ANCHORS": str(anchors)}
    audit_service.ArchiveService(load_settings(Settings, named), BusSettings(), lambda: None)
    assert anchors.read_bytes() == (b"" if gone == "everything" else kept)


async def test_the_ready_line_has_no_credentials(monkeypatch):
    class Service:
        location, ready = "s3://bucket/path", True

        def __init__(self, settings, bus, on_ready):
            self.run = partial(asyncio.to_thread, on_ready)

    said = []
    monkeypatch.setenv("RAILBUS_ARCHIVE", "s3://KEY:very-secret@bucket/path")
    monkeypatch.setattr(program, "ArchiveService", Service)
    monkeypatch.setattr(program, "ensure_topics", partial(asyncio.sleep, 0))
    monkeypatch.setattr(program, "say_ready", said.append)
    await program.main()
    assert said == ["audit archive=s3://bucket/path"]


async def test_records_that_the_broker_lost_are_not_archived(tmp_path):
    archiver = audit_service.ArchiveService(load_settings(Settings, where(tmp_path)), BusSettings(), lambda: None)
    place = ("railbus.streams", 0)
    archiver._buffers[place] = buffer = PartitionBuffer(0)
    for offset in range(5):
        buffer.add(StoredRecord(*place, offset, 1, None, b"old", ()), 7)
    moved = archiver._tail._fetcher._on_moved
    moved(place, 5, 9)  # retention deleted them, so the buffer may have the only copy
    assert len(archiver._buffers[place]) == 5
    moved(place, 5, 0)  # the end of the log was lost
    assert place not in archiver._buffers
    assert archiver._changes.get_nowait() == (place, True)
