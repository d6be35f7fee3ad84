"""Write archives for tests. The records come from the test, so no broker is needed."""

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from schemas.wire import encode, key_of
from services.archive.chain import ArchivedRecord
from services.archive.keys import Signer
from services.archive.reader import Archive, begin_archive
from services.archive.records import query_fields
from services.archive.sealing import KeyStore, seal_all
from services.archive.store import Store
from services.archive.writer import PartitionWriter
from services.bus import StoredRecord

BEGIN_MS = 1_790_000_000_000


class FolderAsObjectStore(Store):
    """A folder in which files are written as in an object store: in place, and not atomically."""

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self.is_folder = False

    def put_new(self, name: str, content: Any) -> None:
        Path(self.path(name)).parent.mkdir(parents=True, exist_ok=True)  # object stores have no folders
        super().put_new(name, content)


def stored(events: Iterable[object], topic: str, partition: int = 0, *, begin_ms: int = BEGIN_MS) -> list[StoredRecord]:
    """Return the events as records of one partition. The timestamps begin at ``begin_ms`` and are 1 ms apart."""
    found = []
    for offset, event in enumerate(events):
        value, headers = encode(event)  # type: ignore[arg-type]
        found.append(
            StoredRecord(topic, partition, offset, begin_ms + offset, key_of(event), value, tuple(headers))  # type: ignore[arg-type]
        )
    return found


def make_archive(
    folder: Path,
    records: Sequence[StoredRecord],
    *,
    per_file: int = 20,
    seal_keys: KeyStore | None = None,
    store_of: Callable[[str], Store] = Store,
) -> Archive:
    """Write the records to an archive in ``folder``, and the signing key to ``FOLDER.pem``.

    Args:
        folder: Folder of the archive.
        records: Records of any topics and partitions.
        per_file: Maximum number of records in a file of the archive.
        seal_keys: Keys with which the texts are sealed; None to seal nothing.
        store_of: Opens the folder; ``FolderAsObjectStore`` to use the folder like an object store.
    """
    signer = Signer.load_or_create(folder.with_suffix(".pem"))
    store = store_of(str(folder))
    begin_archive(store, signer.public_pem)
    for (topic, partition), own in groupby(sorted(records), key=lambda record: record[:2]):
        writer = PartitionWriter(store, signer, topic, partition)
        start = writer.open().end
        held = list(own)
        for begin in range(0, len(held), per_file):
            pairs = [(record, query_fields(record)) for record in held[begin : begin + per_file]]
            plain = [ArchivedRecord(record, fields) for record, fields in pairs]
            start = writer.append(start, plain if seal_keys is None else seal_all(pairs, seal_keys)).end
    return Archive(store, seal_keys)
