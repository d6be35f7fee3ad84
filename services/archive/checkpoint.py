"""Signed checkpoints of archive files, and the names of the files. No I/O."""

import base64
import re
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import msgspec
import orjson

from services.archive.chain import genesis

CHECKPOINT_KEY: Final = b"railbus.checkpoint"
"""Key of the checkpoint in the metadata of a Parquet file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainCheckpoint:
    """Signed summary of a data file. One copy is inside the data file, another in a checkpoint file.

    Attributes:
        start: Offset after the last record of the partition's previous file; 0 for the first file.
        first: Offset of the file's first record.
        total: Number of the partition's records up to the end of this file.
        length: Size of the keys and values of the records that ``total`` counts, in bytes.
        from_ms: Smallest record timestamp in the file, in milliseconds since the epoch.
        to_ms: Largest record timestamp in the file, in milliseconds since the epoch.
        before: Digest of the record before the file's first record, in hex. For the partition's first file, the result
            of ``genesis``.
        head: Digest of the file's last record, in hex.
        file_sha256: SHA-256 of the data file, in hex; empty in the copy inside the data file.
        signer: Short name of the signing key (see ``key_name``).
        signature: Ed25519 signature over all other fields, in base64.
    """

    topic: str
    partition: int
    start: int
    first: int
    last: int
    count: int
    total: int
    length: int
    from_ms: int
    to_ms: int
    before: str
    head: str
    file_sha256: str = ""
    signer: str = ""
    signature: str = ""

    @property
    def end(self) -> int:
        return self.last + 1

    @property
    def signed_bytes(self) -> bytes:
        return b"railbus checkpoint 1\n" + orjson.dumps(
            asdict(replace(self, signature="")), option=orjson.OPT_SORT_KEYS
        )

    @property
    def signature_bytes(self) -> bytes:
        return base64.b64decode(self.signature)

    def says_the_same(self, other: "ChainCheckpoint") -> bool:
        """Compare two checkpoints, ignoring ``file_sha256``, ``signer`` and ``signature``."""
        return self.without_file == other.without_file

    @property
    def without_file(self) -> "ChainCheckpoint":
        return replace(self, file_sha256="", signer="", signature="")

    def to_json(self) -> bytes:
        return orjson.dumps(asdict(self), option=orjson.OPT_SORT_KEYS)


def read_checkpoint(data: bytes) -> ChainCheckpoint | None:
    """Parse a checkpoint from JSON; return None if the JSON is invalid."""
    try:
        return msgspec.json.decode(data, type=ChainCheckpoint)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


@dataclass(frozen=True, slots=True)
class ChainState:
    """State of a partition's chain after its last archived record.

    Attributes:
        end: The next offset to archive; 0 if nothing is archived.
        head: Digest of the last archived record.
        total: Number of archived records.
        length: Total size of the keys and values of the archived records, in bytes.
    """

    end: int
    head: bytes
    total: int
    length: int


def state_after(checkpoint: ChainCheckpoint | None, topic: str, partition: int) -> ChainState:
    if checkpoint is None:
        return ChainState(0, genesis(topic, partition), 0, 0)
    return ChainState(checkpoint.end, bytes.fromhex(checkpoint.head), checkpoint.total, checkpoint.length)


_DATA_NAME: Final = re.compile(
    r"(?:^|/)data/topic=(?P<topic>[^/]+)/day=(?P<day>\d{4}-\d{2}-\d{2})/p(?P<partition>\d{5})-o(?P<start>\d{20})\.parquet$"
)


class DataFile(msgspec.Struct, frozen=True, order=True):
    """The parts of a data file's path. Instances sort by topic, partition and start offset."""

    topic: str
    partition: int
    start: int
    day: str

    @property
    def path(self) -> str:
        name = f"p{self.partition:05d}-o{self.start:020d}.parquet"
        return f"data/topic={self.topic}/day={self.day}/{name}"


def data_file(path: str) -> DataFile | None:
    """Parse the path of a data file; return None for any other path."""
    found = _DATA_NAME.search(path)
    if found is None:
        return None
    return DataFile(found["topic"], int(found["partition"]), int(found["start"]), found["day"])


def checkpoint_path(topic: str, partition: int, start: int) -> str:
    return f"checkpoints/{topic}/{partition}/{start:020d}.json"


def anchors_json(anchors: Any) -> bytes:
    return b"".join(anchor.to_json() + b"\n" for anchor in anchors)
