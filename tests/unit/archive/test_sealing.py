"""Test that sealed (encrypted) texts cannot be read without a key, but an archive's hash chain can be checked."""

import sqlite3
from contextlib import closing

import pytest

pytest.importorskip("pyarrow")

from schemas.topics import REQUESTS, STREAMS
from services.archive.chain import QueryFields
from services.archive.keys import Verifier
from services.archive.reader import Archive, received
from services.archive.sealing import KeyStore, seal_all, unseal
from services.archive.store import Store
from services.archive.verify import verify
from services.bus import StoredRecord
from services.runtime import UserError
from services.runtime.clock import now_ms
from tests.support.archives import make_archive, stored
from tests.support.request_events import RequestEvents


@pytest.fixture
def sealed(tmp_path):
    """Archive three requests. Yield the archive's parent folder, the requests, all records, and the open key store."""
    asked = [RequestEvents() for _ in range(3)]
    streams = [event for each in asked for event in (each.started(), *(each.chunk(seq) for seq in range(5)))]
    records = stored(streams, STREAMS.name, begin_ms=now_ms())
    records += stored([each.request for each in asked], REQUESTS.name, begin_ms=now_ms())
    keys = KeyStore(tmp_path / "keys.sqlite", create=True)
    make_archive(tmp_path / "archive", records, per_file=7, seal_keys=keys)
    yield tmp_path, asked, records, keys
    keys.close()


def everything(folder, keys=None):
    archive = Archive(Store(str(folder / "archive")), keys)
    return [record for file in archive.files() for record in archive.records(file)]


def is_whole(folder):
    archive = Archive(Store(str(folder / "archive")))
    return verify(archive, Verifier([archive.public_pem])).count == 0


def test_with_the_keys_every_byte_is_there(sealed):
    folder, asked, records, keys = sealed
    assert sorted(everything(folder, keys)) == sorted(records)
    one = Archive(Store(str(folder / "archive")), keys).request(asked[1].id)
    assert sum(received(record) is not None for record in one) == 7


def test_without_them_no_text_is(sealed):
    folder, _, records, _ = sealed
    found = everything(folder)
    assert [record[:5] for record in sorted(found)] == [record[:5] for record in sorted(records)]
    assert {received(record) is None for record in found} == {True, False}  # what has no text is readable
    data = b"".join(path.read_bytes() for path in folder.glob("archive/data/*/*/*"))
    assert b"hello" not in data
    assert is_whole(folder)


@pytest.mark.parametrize("kind", ["Started", "Account", "Closed"])
def test_a_request_with_the_kind_of_an_event_without_text_is_sealed(tmp_path, kind):
    """A request is sealed even if the header ``kind`` of its record wrongly names a kind that is not sealed.

    No service can read such a record. But a program may write one by mistake, and the record contains a prompt.
    """
    (record,) = stored([RequestEvents().request], REQUESTS.name, begin_ms=now_ms())
    record = record._replace(headers=(("kind", kind.encode()), ("v", b"1")))
    keys = KeyStore(tmp_path / "keys.sqlite", create=True)
    make_archive(tmp_path / "archive", [record], seal_keys=keys)
    assert everything(tmp_path)[0].value is None
    assert everything(tmp_path, keys) == [record]
    keys.close()


def test_a_request_that_is_forgotten_cannot_be_read_and_the_others_can(sealed):
    folder, asked, _, keys = sealed
    assert keys.forget(request_id=asked[1].id) == 1
    kept = {
        record.key
        for record in everything(folder, keys)
        if record.value is not None and b"Chunk" in str(record.headers).encode()
    }
    assert kept == {asked[0].id.encode(), asked[2].id.encode()}
    assert is_whole(folder)
    keys.close()
    again = KeyStore(folder / "keys.sqlite")
    assert again.key(asked[1].id, "acme") is None
    assert again.forget(tenant="acme") == 2
    again.close()
    assert all(received(record) is None for record in everything(folder, None) if record.topic == REQUESTS.name)


def test_what_is_sealed_after_a_tenant_was_forgotten_elsewhere_is_readable(tmp_path):
    archiver, forgetting = KeyStore(tmp_path / "keys", create=True), KeyStore(tmp_path / "keys")
    fields = QueryFields("DeadLetter", None, "acme", 1)
    first, second = (StoredRecord("railbus.dead", 0, offset, 1, None, b"what", ()) for offset in (0, 1))
    (before,) = seal_all([(first, fields)], archiver)
    assert forgetting.forget(tenant="acme") == 1
    (after,) = seal_all([(second, fields)], archiver)
    with closing(KeyStore(tmp_path / "keys")) as reading:
        assert unseal(after.record, ("", "acme"), reading).value == b"what"
        assert unseal(before.record, ("", "acme"), reading).value is None
    archiver.close()
    forgetting.close()


def test_a_destroyed_key_is_not_in_the_file_any_more(sealed):
    folder, asked, _, keys = sealed
    key = keys.key(asked[0].id, "acme")
    assert key in (folder / "keys.sqlite").read_bytes()
    keys.forget(request_id=asked[0].id)
    assert key not in (folder / "keys.sqlite").read_bytes()


def test_a_value_that_was_moved_does_not_open(sealed):
    from services.archive.sealing import unseal

    folder, asked, _, keys = sealed
    chunk = next(r for r in everything(folder) if r.topic == STREAMS.name)
    archive = Archive(Store(str(folder / "archive")))
    table = archive.table(archive.files()[-1], ["value", "offset", "sealed"])
    index = table.column("sealed").to_pylist().index(True)
    moved = chunk._replace(value=table.column("value").to_pylist()[index], offset=10**6)
    assert unseal(moved, (asked[0].id, "acme"), keys).value is None


@pytest.mark.parametrize("size", [0, 7, 12, 20])
def test_a_sealed_value_that_was_cut_does_not_open(tmp_path, size):
    record = StoredRecord("railbus.dead", 0, 0, 1, None, b"what", ())
    with closing(KeyStore(tmp_path / "keys", create=True)) as keys:
        (sealed,) = seal_all([(record, QueryFields("DeadLetter", None, "acme", 1))], keys)
        cut = sealed.record._replace(value=sealed.record.value[:size])
        assert unseal(cut, ("", "acme"), keys).value is None


def test_a_missing_key_store_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match="name the archiver's RAILBUS_AUDIT_SEAL_KEYS"):
        KeyStore(tmp_path / "none")


def test_another_file_than_a_key_store_is_one_sentence(tmp_path):
    (tmp_path / "empty").touch()
    with pytest.raises(UserError, match="cannot be used: no such table: keys"):
        KeyStore(tmp_path / "empty")


def test_a_key_store_that_cannot_be_written_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr("services.archive.sealing.WAIT_S", 0.01)
    path = tmp_path / "keys"
    with closing(KeyStore(path, create=True)) as keys, closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(UserError, match="cannot be written: database is locked; run this again"):
            keys.forget(tenant="acme")


def test_while_the_key_store_is_locked_the_archiver_may_try_again(tmp_path, monkeypatch):
    """``KeyStore.make`` raises an ``OSError`` while another process locks the key store, and succeeds afterwards.

    ``railbus audit forget`` may lock a large key store for longer than the archiver waits.
    """
    monkeypatch.setattr("services.archive.sealing.WAIT_S", 0.01)
    path = tmp_path / "keys"
    with closing(KeyStore(path, create=True)) as keys, closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(OSError, match="the key store: database is locked"):
            keys.make([("request", "acme")])
        other.rollback()
        assert len(keys.make([("request", "acme")])) == 1
