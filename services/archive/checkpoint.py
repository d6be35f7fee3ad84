"""The checkpoint of one file of the archive, and the state of the partition's chain at the end of a file. No I/O."""

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
    """A description of one file, and of all earlier records of its partition.

    Attributes:
        start: The offset at which the file before it ended. No other file of the partition may have the same start.
        first: Offset of the file's first record. It is larger than ``start`` if the log had no records in between.
        last: Offset of the file's last record.
        count: Number of records in the file.
        total: Number of records of the partition up to the end of the file.
        length: Number of bytes of the keys and values of these ``total`` records.
        from_ms: Smallest record time in the file, milliseconds since the epoch.
        to_ms: Largest record time in the file.
        before: Digest before the file's first record, hex.
        head: Digest of the file's last record, hex.
        file_sha256: SHA-256 of the data file, hex. It is empty in the copy inside the file, because a file cannot
            contain its own hash.
        signer: Name of the key: the first 16 hex digits of the SHA-256 of the public key.
        signature: Ed25519 signature over all other fields, base64.
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
        """The offset at which the next file starts."""
        return self.last + 1

    @property
    def signed_bytes(self) -> bytes:
        """The bytes that the signature covers."""
        return b"railbus checkpoint 1\n" + orjson.dumps(
            asdict(replace(self, signature="")), option=orjson.OPT_SORT_KEYS
        )

    @property
    def signature_bytes(self) -> bytes:
        return base64.b64decode(self.signature)

    def says_the_same(self, other: "ChainCheckpoint") -> bool:
        """Return whether both checkpoints are equal, apart from ``file_sha256``, ``signer`` and ``signature``."""
        return self.without_file == other.without_file

    @property
    def without_file(self) -> "ChainCheckpoint":
        return replace(self, file_sha256="", signer="", signature="")

    def to_json(self) -> bytes:
        return orjson.dumps(asdict(self), option=orjson.OPT_SORT_KEYS)


def read_checkpoint(data: bytes) -> ChainCheckpoint | None:
    """Return the checkpoint that is in this JSON; None if the JSON is not a checkpoint."""
    try:
        return msgspec.json.decode(data, type=ChainCheckpoint)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


@dataclass(frozen=True, slots=True)
class ChainState:
    """The end of the archived records of a partition.

    Attributes:
        end: The next offset to archive. It is 0 while nothing is archived, whatever the log's first offset is.
        head: The digest of the last archived record.
    """

    end: int
    head: bytes
    total: int
    length: int


def state_after(checkpoint: ChainCheckpoint | None, topic: str, partition: int) -> ChainState:
    """Return the state after this checkpoint. For None, return the state before the first record."""
    if checkpoint is None:
        return ChainState(0, genesis(topic, partition), 0, 0)
    return ChainState(checkpoint.end, bytes.fromhex(checkpoint.head), checkpoint.total, checkpoint.length)


_DATA_NAME: Final = re.compile(
    r"(?:^|/)data/topic=(?P<topic>[^/]+)/day=(?P<day>\d{4}-\d{2}-\d{2})/p(?P<partition>\d{5})-o(?P<start>\d{20})\.parquet$"
)


class DataFile(msgspec.Struct, frozen=True, order=True):
    """The parts of a data file's path. Files are sorted by topic, partition and start."""

    topic: str
    partition: int
    start: int
    day: str

    @property
    def path(self) -> str:
        name = f"p{self.partition:05d}-o{self.start:020d}.parquet"
        return f"data/topic={self.topic}/day={self.day}/{name}"


def data_file(path: str) -> DataFile | None:
    """Return the parts of this path; None if it is not the path of a data file."""
    found = _DATA_NAME.search(path)
    if found is None:
        return None
    return DataFile(found["topic"], int(found["partition"]), int(found["start"]), found["day"])


def checkpoint_path(topic: str, partition: int, start: int) -> str:
    return f"checkpoints/{topic}/{partition}/{start:020d}.json"


def anchors_json(anchors: Any) -> bytes:
    """Return the checkpoints as JSON, one per line."""
    return b"".join(anchor.to_json() + b"\n" for anchor in anchors)
