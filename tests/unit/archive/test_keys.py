"""Keys of an archive: which copies of a public key are the same key."""

import pytest

pytest.importorskip("pyarrow")

from schemas.topics import STREAMS
from services.archive.keys import Verifier
from services.archive.verify import verify
from services.bus import StoredRecord
from tests.support.archives import BEGIN_MS, make_archive


@pytest.mark.parametrize("copied", [lambda pem: pem.replace(b"\n", b"\r\n"), bytes.rstrip, lambda pem: b"\n" + pem])
def test_a_copy_of_a_public_key_with_other_line_ends_is_the_same(tmp_path, copied):
    archive = make_archive(tmp_path / "archive", [StoredRecord(STREAMS.name, 0, 0, BEGIN_MS, None, b"{}", ())])
    copy = tmp_path / "copy.pub"
    copy.write_bytes(copied((tmp_path / "archive.pem.pub").read_bytes()))
    assert verify(archive, Verifier.load([copy])).count == 0
