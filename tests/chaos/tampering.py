"""Change archives at random places, and check that ``verify`` reports each change.

    python -m tests.chaos.tampering [--rounds 1000] [--seed 1]

The attacker has no private key, but may compute the digests of a changed file's records again. ``verify`` must report
the place of every change, and must report nothing for an unchanged archive.
"""

import argparse
import json
import random
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from services.archive.chain import chained
from services.archive.checkpoint import data_file
from services.archive.keys import Verifier
from services.archive.reader import Archive
from services.archive.records import archived_records, table_of
from services.archive.store import Store
from services.archive.verify import Verification, verify
from services.bus import StoredRecord
from tests.support.archives import BEGIN_MS, make_archive

PARTITIONS = (("railbus.streams", 0), ("railbus.streams", 1), ("railbus.receipts", 0))


def records(rng: random.Random) -> list[StoredRecord]:
    """Return 90 to 180 records. Some offsets are missing, and some records have no key or no value."""
    found = []
    for topic, partition in PARTITIONS:
        offset = rng.choice((0, 0, 7))
        for number in range(rng.randint(30, 60)):
            value = (
                None if rng.random() < 0.05 else b'{"tenant":"t","at":%d,"text":"%d"}' % (number, rng.getrandbits(40))
            )
            key = None if rng.random() < 0.05 else b"%d" % rng.getrandbits(20)
            headers = (("kind", b"Chunk"), ("v", b"1"))[: rng.randint(0, 2)]
            found.append(StoredRecord(topic, partition, offset, BEGIN_MS + number, key, value, headers))
            offset += rng.choice((1, 1, 1, 1, 3))
    return found


class Tamperer:
    """Chooses a random data file of an archive, and makes a change there.

    ``KINDS`` has the names of the methods that make a change, one for each kind of change.

    Attributes:
        path: The chosen file.
        places: A range of offsets, set by each change. ``verify`` must report at least one of these offsets.
    """

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.folder = folder
        self.rng = rng
        self.path = rng.choice(sorted(folder.glob("data/*/*/*.parquet")))
        self.file = data_file(str(self.path))
        table = pq.read_table(self.path, partitioning=None)
        self.metadata = pq.read_metadata(self.path).metadata
        self.rows = list(archived_records(self.file.topic, table))
        self.offsets = [row[0].record.offset for row in self.rows]
        self.places: range = range(0)

    def edit(self) -> None:
        index = self.rng.randrange(len(self.rows))
        archived, digest = self.rows[index]
        record = archived.record
        changed = self.rng.choice(
            (
                record._replace(value=(record.value or b"") + b" "),
                record._replace(key=b"other"),
                record._replace(timestamp_ms=record.timestamp_ms + 1),
                record._replace(headers=(*record.headers, ("x", b"y"))),
                record._replace(offset=record.offset + 1) if record.offset + 1 not in self.offsets else None,
                None,
            )
        )
        if changed is None:
            fields = archived.fields._replace(tenant="somebody")
            self.rows[index] = (archived._replace(fields=fields), digest)
        else:
            self.rows[index] = (archived._replace(record=changed), digest)
        self._write(index)

    def drop(self) -> None:
        index = self.rng.randrange(len(self.rows))
        del self.rows[index]
        self._write(index)

    def swap(self) -> None:
        if len(self.rows) < 2:
            return self.drop()
        low, high = sorted(self.rng.sample(range(len(self.rows)), 2))
        self.rows[low], self.rows[high] = self.rows[high], self.rows[low]
        return self._write(low)

    def insert(self) -> None:
        index = self.rng.randrange(len(self.rows))
        archived, digest = self.rows[index]
        offset = self.rng.choice((archived.record.offset, archived.record.offset + 1))
        self.rows.insert(index + 1, (archived._replace(record=archived.record._replace(offset=offset)), digest))
        self._write(index)

    def cut_file(self) -> None:
        keep = self.rng.randrange(len(self.rows))
        self.rows = self.rows[:keep]
        self._write(keep)

    def damage_bytes(self) -> None:
        content = bytearray(self.path.read_bytes())
        content[self.rng.randrange(len(content))] ^= 1 << self.rng.randrange(8)
        self.path.write_bytes(content)
        self._within_file()

    def remove_file(self) -> None:
        self.path.unlink()
        self._within_file()

    def cut_tail(self) -> None:
        """Remove the file ``path`` and all later files of its partition, with their checkpoints."""
        own = sorted(
            self.folder.glob(f"data/topic={self.file.topic}/*/p{self.file.partition:05d}-*"), key=lambda p: p.name
        )
        gone = [path for path in own if path.name >= self.path.name]
        for path in gone:
            path.unlink()
            start = data_file(str(path)).start
            (self.folder / f"checkpoints/{self.file.topic}/{self.file.partition}/{start:020d}.json").unlink()
        self.places = range(10**6)

    def exchange_files(self) -> None:
        """Overwrite a file with another file of the same partition. If there is no other file, remove the file."""
        others = [path for path in self.path.parent.glob(f"p{self.file.partition:05d}-*") if path != self.path]
        if not others:
            return self.remove_file()
        shutil.copy(self.rng.choice(sorted(others)), self.path)
        return self._within_file()

    def change_checkpoint(self) -> None:
        path = self.folder / f"checkpoints/{self.file.topic}/{self.file.partition}/{self.file.start:020d}.json"
        told = json.loads(path.read_bytes())
        told[self.rng.choice(("last", "count", "total", "length"))] += 1
        path.write_text(json.dumps(told))
        self._within_file()

    def _within_file(self) -> None:
        self.places = range(self.file.start, max([*self.offsets, self.file.start]) + 5)

    def _write(self, index: int) -> None:
        """Write ``rows`` to the file, and set ``places``. The caller has changed no row before row ``index``.

        In 30 % of the calls, recompute the digests of all rows before writing.
        """
        first = self.offsets[max(0, index - 1)]
        self.places = range(min(first, self.file.start if index == 0 else first), self.offsets[-1] + 5)
        if self.rng.random() < 0.3:
            before = bytes.fromhex(json.loads(self.metadata[b"railbus.checkpoint"])["before"])
            archived = [row[0] for row in self.rows]
            self.rows = list(zip(archived, chained(before, archived), strict=True))
            self._within_file()
        table = table_of([row[0] for row in self.rows], [row[1] for row in self.rows])
        with pq.ParquetWriter(pa.OSFile(str(self.path), "wb"), table.schema, store_schema=False) as writer:
            writer.write_table(table)
            kept = {k: v for k, v in self.metadata.items() if k.startswith(b"railbus")}
            writer.add_key_value_metadata(kept)


KINDS = ("edit", "drop", "swap", "insert", "cut_file", "damage_bytes", "remove_file", "cut_tail", "exchange_files",
         "change_checkpoint")  # fmt: skip


def check(folder: Path, anchors) -> Verification:
    archive = Archive(Store(str(folder)))
    return verify(archive, Verifier([folder.with_suffix(".pem.pub").read_bytes()]), anchors)


def play(rounds: int, seed: int, say=lambda _: None) -> Counter[str]:
    """Change archives ``rounds`` times, and return how many changes of each kind ``verify`` reported.

    Raises:
        AssertionError: ``verify`` missed a change, or reported one that was not made.
    """
    rng = random.Random(seed)
    named: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        for number in range(rounds):
            folder = Path(name) / "archive"
            if number % 20 == 0:  # another archive from time to time
                shutil.rmtree(folder, ignore_errors=True)
                make_archive(folder, records(rng), per_file=rng.randint(4, 25))
                clean = check(folder, ())
                assert clean.count == 0, f"round {number}: a false alarm: {clean.tampering[:3]}"
                anchors = list(clean.heads.values())
                assert check(folder, anchors).count == 0
            copy = Path(name) / "copy"
            shutil.copytree(folder, copy)
            shutil.copy(folder.with_suffix(".pem.pub"), copy.with_suffix(".pem.pub"))
            kind = KINDS[number % len(KINDS)]
            tamperer = Tamperer(copy, rng)
            getattr(tamperer, kind)()
            found = check(copy, anchors)
            about = f"round {number}: {kind} of {tamperer.path.name} at {tamperer.places}"
            own = [
                t for t in found.tampering if (t.topic, t.partition) == (tamperer.file.topic, tamperer.file.partition)
            ]
            assert found.count, f"{about}: not noticed"
            assert any(t.offset in tamperer.places for t in own), f"{about}: named elsewhere: {own}"
            assert len(own) == len(found.tampering), f"{about}: a false alarm elsewhere: {found.tampering}"
            named[kind] += 1
            shutil.rmtree(copy)
            say(number)
    return named


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    named = play(args.rounds, args.seed)
    print(
        json.dumps({"rounds": args.rounds, "seed": args.seed, "named": sum(named.values()), "by_kind": named}, indent=2)
    )


if __name__ == "__main__":
    main()
