"""Test that an archiver becomes unready if it cannot write.

Also test what happens to buffered records that are no longer on the log. If retention deleted them, the archiver keeps
them. If the broker lost the end of the log, the archiver discards them.
"""

import asyncio
import errno
from types import SimpleNamespace

import pytest

from services.audit import service as audit_service
from services.audit.buffer import PartitionBuffer
from services.audit.settings import Settings
from services.bus import BusSettings, StoredRecord
from services.runtime.settings import load_settings
from tests.support.waiting import until

pytest.importorskip("pyarrow")


async def test_an_archiver_that_cannot_write_for_long_is_not_ready(tmp_path, monkeypatch):
    monkeypatch.setattr(audit_service, "STALE_S", 0.05, raising=False)
    monkeypatch.setattr(audit_service, "RETRY_S", (0.05,))
    where = {"RAILBUS_ARCHIVE": str(tmp_path / "archive"), "RAILBUS_AUDIT_KEY": str(tmp_path / "key.pem")}
    archiver = audit_service.ArchiveService(load_settings(Settings, where), BusSettings(), lambda: None)
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


async def test_records_that_the_broker_lost_are_not_archived(tmp_path):
    where = {"RAILBUS_ARCHIVE": str(tmp_path / "archive"), "RAILBUS_AUDIT_KEY": str(tmp_path / "key.pem")}
    archiver = audit_service.ArchiveService(load_settings(Settings, where), BusSettings(), lambda: None)
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
