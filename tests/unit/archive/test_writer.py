"""Test how a writer adds records to an archive and continues after an earlier writer, and which archives are refused.

Each archive is in a folder. The tests with the mark ``stores`` also run with a folder that is used like an object
store.
"""

import os

import pytest

pytest.importorskip("pyarrow")

from schemas.topics import STREAMS
from services.archive.chain import ArchivedRecord
from services.archive.keys import Signer, Verifier
from services.archive.reader import Archive, begin_archive
from services.archive.records import query_fields
from services.archive.store import Exists, Store
from services.archive.verify import verify
from services.archive.writer import Conflict, PartitionWriter
from services.bus import StoredRecord
from services.runtime import UserError
from tests.support.archives import BEGIN_MS, FolderAsObjectStore, make_archive

DAY_MS = 86_400_000
NAMES = [
    StoredRecord(STREAMS.name, 0, 3 * n, BEGIN_MS + n * DAY_MS // 4, None, value, headers)
    for n, (value, headers) in enumerate(
        [
            (b"", ()), (None, (("kind", b"Chunk"),)), (b"\xff\x00", (("kind", None), ("kind", b"x"))), (b"{}", ()),
            (b'{"at":-1,"tenant":5}', (("v", b"1"),)), (b'{"tenant":"t","at":9}', ()), (b"[", ()), (b'{"at":true}', ()),
        ]
    )
]  # fmt: skip
"""Records that cannot be read as events. There are gaps between their offsets, and their times span two days."""

stores = pytest.mark.parametrize("store_of", [Store, FolderAsObjectStore])


def archived(records):
    return [ArchivedRecord(record, query_fields(record)) for record in records]


@stores
def test_what_is_archived_comes_back_as_it_was(tmp_path, store_of):
    days = {record.timestamp_ms // DAY_MS for record in NAMES}
    by_day = [[r for r in NAMES if r.timestamp_ms // DAY_MS == day] for day in sorted(days)]
    for own in by_day:
        archive = make_archive(tmp_path / "archive", own, per_file=2, store_of=store_of)
    found = [record for file in archive.files() for record in archive.records(file)]
    assert found == NAMES
    assert len({file.day for file in archive.files()}) == len(days) > 1
    outcome = verify(archive, Verifier([archive.public_pem]))
    assert (outcome.count, outcome.records, outcome.gaps) == (0, len(NAMES), len(NAMES) - 1)


@stores
def test_a_second_writer_goes_on_behind_the_first(tmp_path, store_of):
    signer, store = Signer.load_or_create(tmp_path / "key.pem"), store_of(str(tmp_path / "archive"))
    begin_archive(store, signer.public_pem)
    first, second = (PartitionWriter(store, signer, STREAMS.name, 0) for _ in range(2))
    assert first.open().end == second.open().end == 0
    checkpoint = first.append(0, archived(NAMES[:3]))
    with pytest.raises(Conflict) as conflict:
        second.append(0, archived(NAMES[:2]))
    assert conflict.value.state == second.state == first.state
    assert (checkpoint.first, checkpoint.end, checkpoint.total) == (0, 7, 3)
    with pytest.raises(Conflict):
        second.append(10, archived(NAMES[4:5]))  # what lies between would be missing for ever
    second.append(7, archived(NAMES[3:4]))
    with pytest.raises(Exists):
        store.put_new("archive.json", b"")


def test_a_file_whose_checkpoint_is_missing_is_completed(tmp_path):
    """If a data file has no checkpoint, the writer adds the checkpoint when it opens the partition.

    The checkpoint is missing if an earlier writer was killed after it wrote the data file.
    """
    archive = make_archive(tmp_path / "archive", NAMES[:4], per_file=2)
    (checkpoint,) = list((tmp_path / "archive").glob("checkpoints/*/0/*4.json"))
    told = checkpoint.read_bytes()
    checkpoint.unlink()
    signer = Signer.load_or_create(tmp_path / "archive.pem")
    assert PartitionWriter(archive.store, signer, STREAMS.name, 0).open().end == 10
    assert checkpoint.read_bytes() == told


def test_a_removed_file_is_no_conflict_with_another_archiver(tmp_path):
    """If the newest data file was removed, writing raises an error that says so, and not a ``Conflict``.

    After a ``Conflict``, the archiver would try again for ever, and archive nothing more of the partition.
    """
    archive = make_archive(tmp_path / "archive", NAMES[:4], per_file=2)
    (newest,) = (tmp_path / "archive").glob("data/*/*/*4.parquet")
    newest.unlink()
    writer = PartitionWriter(archive.store, Signer.load_or_create(tmp_path / "archive.pem"), STREAMS.name, 0)
    assert writer.open().end == 4
    with pytest.raises(UserError, match=r"checkpoints/.*/0/0*4\.json was removed: put the file back"):
        writer.append(4, archived(NAMES[2:4]))


def test_an_archive_of_another_key_is_refused(tmp_path):
    archive = make_archive(tmp_path / "archive", NAMES[:4])
    other = Signer.load_or_create(tmp_path / "other.pem")
    with pytest.raises(UserError, match="not signed with the key of RAILBUS_AUDIT_KEY"):
        PartitionWriter(archive.store, other, STREAMS.name, 0).open()


def test_an_archive_of_a_newer_format_is_refused(tmp_path):
    store = Store(str(tmp_path / "archive"))
    store.put_new("archive.json", b'{"format": 2, "public_key": ""}')
    with pytest.raises(UserError, match="has format 2, this version reads 1: upgrade"):
        Archive(store)


def test_a_key_that_is_none_is_refused(tmp_path):
    (tmp_path / "key.pem").write_text("not a key")
    with pytest.raises(UserError, match="is no PEM file of an Ed25519 key"):
        Signer.load_or_create(tmp_path / "key.pem")


def test_files_of_killed_processes_are_removed(tmp_path):
    store = Store(str(tmp_path / "archive"))
    store.put_new("archive.json", b"{}")
    old, new = (tmp_path / "archive" / "tmp" / name for name in ("old", "new"))
    for path in (old, new):
        path.write_bytes(b"half a file")
    os.utime(old, (0, 0))
    store.remove_abandoned()
    assert (old.exists(), new.exists()) == (False, True)


def test_a_folder_named_by_a_uri_is_written_like_any_folder(tmp_path):
    """The file of a killed archiver is incomplete only in the folder ``tmp``, and files are synced to the disk."""
    store = Store(f"file://{tmp_path}/archive")
    assert store.is_folder
    store.put_new("data/one", b"1")
    assert sorted(path.name for path in (tmp_path / "archive").iterdir()) == ["data", "tmp"]
    assert Store(str(tmp_path / "archive")).read("data/one") == b"1"


@pytest.mark.parametrize(
    "uri", ["s3://KEY:se/cret@bucket/path", "s3://KEY:se@cret@bucket/path", "s4://KEY:secret@bucket/path"]
)
def test_a_location_that_cannot_be_used_is_named_without_its_secret(uri):
    with pytest.raises(UserError, match=r"^the archive s[34]://bucket/path: ") as refused:
        Store(uri)
    assert "cret" not in str(refused.value)
    assert "KEY" not in str(refused.value)


def test_records_of_a_clock_that_is_far_ahead_are_read_and_verified(tmp_path):
    records = [record._replace(timestamp_ms=240_000_000_000_000) for record in NAMES]  # in the year 9575
    archive = make_archive(tmp_path / "archive", records)
    assert [record for file in archive.files() for record in archive.records(file)] == records
    assert verify(archive, Verifier([archive.public_pem])).count == 0


def test_a_clock_that_is_set_back_over_midnight_changes_nothing(tmp_path):
    records = [record._replace(offset=n, timestamp_ms=BEGIN_MS - n * DAY_MS) for n, record in enumerate(NAMES)]
    for record in records:
        archive = make_archive(tmp_path / "archive", [record])
    found = sorted(record for file in archive.files() for record in archive.records(file))
    assert found == records
    assert verify(archive, Verifier([archive.public_pem])).count == 0
