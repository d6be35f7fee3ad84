"""Test that ``verify`` reports the place of each change in an archive's files, and raises no false alarm."""

import pytest

pytest.importorskip("pyarrow")

import random
from pathlib import Path

from msgspec import structs

from schemas.topics import STREAMS
from services.archive.checkpoint import CHECKPOINT_KEY
from services.archive.keys import Verifier
from services.archive.verify import verify
from services.archive.writer import checkpoint_in
from services.bus import StoredRecord
from tests.chaos.tampering import KINDS, play, records
from tests.support.archives import BEGIN_MS, make_archive
from tests.support.examples import examples


@pytest.mark.slow
def test_random_changes_are_all_named_and_there_is_no_false_alarm():
    rounds = max(len(KINDS), examples(60))
    assert sum(play(rounds, seed=11).values()) == rounds


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    """Return an archive that tests may damage, the path of one of its data files, and that file's original content."""
    archive = make_archive(tmp_path_factory.mktemp("damaged") / "archive", records(random.Random(3)))
    path = Path(archive.store.path(archive.files()[0].path))
    return archive, path, path.read_bytes()


@pytest.mark.slow
def test_a_bit_anywhere_in_a_footer_never_ends_the_reading(damaged):
    """Reading a checkpoint raises no exception, whichever byte of the Parquet footer has a flipped bit.

    For example, a flipped bit can make a column name invalid as UTF-8.
    """
    archive, path, content = damaged
    footer = int.from_bytes(content[-8:-4], "little") + 8
    name, rng = archive.files()[0].path, random.Random(4)
    assert CHECKPOINT_KEY in content[-footer:]
    try:
        for place in range(len(content) - footer, len(content)):
            changed = bytearray(content)
            changed[place] ^= 1 << rng.randrange(8)
            path.write_bytes(changed)
            checkpoint_in(archive.store, name)
    finally:
        path.write_bytes(content)


def test_a_column_name_that_is_no_text_is_named(damaged):
    archive, path, content = damaged
    changed = bytearray(content)
    changed[content.rindex(b"header_names") + 7] |= 0x80
    path.write_bytes(changed)
    try:
        outcome = verify(archive, Verifier([archive.public_pem]))
    finally:
        path.write_bytes(content)
    assert {each.file for each in outcome.tampering} == {archive.files()[0].path}
    assert verify(archive, Verifier([archive.public_pem])).count == 0


def test_a_file_in_the_folder_of_another_day_is_named(tmp_path):
    """``verify`` reports a data file that is in the folder of one day, but has records of another day.

    A search skips the folders of days outside its time range, so it can miss the records of such a file.
    """
    log = [StoredRecord(STREAMS.name, 0, n, BEGIN_MS + n, b"key", b"value", ()) for n in range(4)]
    archive = make_archive(tmp_path / "archive", log, per_file=2)
    file = archive.files()[1]
    moved = structs.replace(file, day="2020-02-02")
    Path(archive.store.path(moved.path)).parent.mkdir()
    Path(archive.store.path(file.path)).rename(archive.store.path(moved.path))

    outcome = verify(archive, Verifier([archive.public_pem]))

    what = "the file is in the folder of one day, but its records are of another day"
    assert [(each.offset, each.what, each.file) for each in outcome.tampering] == [(2, what, moved.path)]


@pytest.mark.parametrize("number", [0, 1])
def test_a_file_that_was_removed_casts_no_doubt_on_the_next(tmp_path, number):
    """If a data file was removed, ``verify`` reports its missing records and nothing else."""
    log = [StoredRecord(STREAMS.name, 0, n, BEGIN_MS + n, b"key", b"value", ()) for n in range(8)]
    archive = make_archive(tmp_path / "archive", log, per_file=2)
    keys = Verifier([archive.public_pem])
    anchors = verify(archive, keys).heads.values()
    Path(archive.store.path(archive.files()[number].path)).unlink()

    outcome = verify(archive, keys, anchors)

    end = 2 * number + 1
    what = f"records are missing up to offset {end}: a file was removed"
    assert [(each.offset, each.what) for each in outcome.tampering] == [(2 * number, what)]
