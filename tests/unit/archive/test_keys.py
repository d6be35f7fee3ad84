"""Tests of an archive's signing keys: how they are created, and which copies of a public key count as the same key."""

import resource
from contextlib import contextmanager

import pytest

pytest.importorskip("pyarrow")

from schemas.topics import STREAMS
from services.archive.keys import Signer, Verifier
from services.archive.verify import verify
from services.bus import StoredRecord
from services.runtime import UserError
from tests.support.archives import BEGIN_MS, make_archive


@pytest.mark.parametrize("copied", [lambda pem: pem.replace(b"\n", b"\r\n"), bytes.rstrip, lambda pem: b"\n" + pem])
def test_a_copy_of_a_public_key_with_other_line_ends_is_the_same(tmp_path, copied):
    archive = make_archive(tmp_path / "archive", [StoredRecord(STREAMS.name, 0, 0, BEGIN_MS, None, b"{}", ())])
    copy = tmp_path / "copy.pub"
    copy.write_bytes(copied((tmp_path / "archive.pem.pub").read_bytes()))
    assert verify(archive, Verifier.load([copy])).count == 0


@pytest.fixture
def full_disk():
    """Return a context manager within which this process can write nothing to files, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    @contextmanager
    def full():
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return full


@pytest.mark.parametrize("missing", ["key.pem", "key.pem.pub"])
def test_after_a_full_disk_the_next_start_makes_the_keys(tmp_path, full_disk, missing):
    key = tmp_path / "key.pem"
    if missing == "key.pem.pub":
        Signer.load_or_create(key)
        (tmp_path / missing).unlink()
    with full_disk(), pytest.raises(UserError, match="File too large"):
        Signer.load_or_create(key)
    signer = Signer.load_or_create(key)
    assert key.with_name("key.pem.pub").read_bytes() == signer.public_pem
    assert {path.name for path in tmp_path.iterdir()} == {"key.pem", "key.pem.pub"}
