"""Tests of what an archive promises: for example, other users cannot read the keys, and masked prompts are sealed."""

import pytest

pytest.importorskip("pyarrow")

from contextlib import closing
from dataclasses import replace

from schemas.ids import time_ms
from schemas.requests import Message
from schemas.stream import Verdict
from schemas.topics import DAY_MS, STREAMS
from services.archive.checkpoint import read_checkpoint
from services.archive.keys import Signer, Verifier
from services.archive.reader import Archive
from services.archive.sealing import KeyStore
from services.archive.verify import verify
from services.bus import StoredRecord
from tests.support.archives import BEGIN_MS, make_archive, stored
from tests.support.request_events import RequestEvents


def record(offset, later_ms=0, key=None):
    return StoredRecord(STREAMS.name, 0, offset, BEGIN_MS + later_ms, key, b"{}", ())


def test_nobody_else_may_read_the_keys(tmp_path):
    KeyStore(tmp_path / "keys", create=True).close()
    Signer.load_or_create(tmp_path / "key.pem")
    assert [(tmp_path / name).stat().st_mode & 0o077 for name in ("keys", "key.pem")] == [0, 0]


def test_a_key_that_was_used_is_gone_once_it_is_forgotten(tmp_path):
    with closing(KeyStore(tmp_path / "keys", create=True)) as keys:
        keys.make([("r", "acme")])
        assert keys.key("r", "acme") is not None
        keys.forget(request_id="r")
        assert keys.key("r", "acme") is None


def test_a_masked_prompt_is_sealed(tmp_path):
    asked = RequestEvents()
    verdict = Verdict(
        **asked.about(), decision="mask", policy_version="v", masked=(Message(role="user", content="no name here"),)
    )
    with closing(KeyStore(tmp_path / "keys", create=True)) as keys:
        archive = make_archive(tmp_path / "archive", stored([verdict], STREAMS.name), seal_keys=keys)
    sealed = Archive(archive.store)
    assert [each.value for file in sealed.files() for each in sealed.records(file)] == [None]


def test_a_request_of_an_edge_with_a_clock_ahead_is_found(tmp_path):
    asked = RequestEvents()
    midnight_ms = time_ms(asked.id) // DAY_MS * DAY_MS
    archive = make_archive(tmp_path / "archive", stored([asked.started()], STREAMS.name, begin_ms=midnight_ms - 1))
    assert len(list(archive.request(asked.id))) == 1


def test_a_range_has_its_first_millisecond_and_not_its_last(tmp_path):
    archive = make_archive(tmp_path / "archive", [record(offset, offset) for offset in range(5)])
    (file,) = archive.files(from_ms=BEGIN_MS, to_ms=BEGIN_MS)
    assert [each.offset for each in archive.records(file, BEGIN_MS + 1, BEGIN_MS + 3)] == [1, 2]


def test_a_checkpoint_has_the_earliest_and_the_latest_time(tmp_path):
    archive = make_archive(tmp_path / "archive", [record(0, 50), record(1, 90), record(2, 10), record(3, 40)])
    checkpoint = read_checkpoint(archive.store.read(f"checkpoints/{STREAMS.name}/0/{0:020d}.json"))
    assert (checkpoint.from_ms - BEGIN_MS, checkpoint.to_ms - BEGIN_MS) == (10, 90)


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"signature": ""}, "the anchor is not signed with a key that is trusted"),
        ({"head": "0" * 64}, "the archive has another history than the anchor"),
        ({"last": 2}, "the archive has another history than the anchor"),
        ({"last": 9}, "the tail is cut off: offset 9 was archived"),
    ],
)
def test_an_anchor_that_does_not_fit_is_named(tmp_path, changed, what):
    archive = make_archive(tmp_path / "archive", [record(offset) for offset in range(6)], per_file=4)
    keys = Verifier([archive.public_pem])
    heads = verify(archive, keys).heads.values()
    assert verify(archive, keys, heads).count == 0
    (anchor,) = (replace(each, **changed) for each in heads)
    if "signature" not in changed:
        anchor = Signer.load_or_create(tmp_path / "archive.pem").sign(anchor)
    assert [each.what for each in verify(archive, keys, [anchor]).tampering] == [what]
