"""The archiver's settings."""

from dataclasses import dataclass, field
from pathlib import Path

from services.runtime.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of the archiver.

    Attributes:
        archive: Folder of the archive, or a URI that pyarrow reads, such as ``s3://bucket/path``. All archivers of one
            log use the same archive.
        audit_key: PEM file of the Ed25519 key that signs checkpoints; created if it does not exist. Keep it outside the
            archive, because whoever has the key can forge an archive.
        audit_anchors: File to which the newest checkpoint of each partition is written. Keep it on another host than
            the archive: it shows whether records at the archive's end were removed. Without it, no file is written.
        audit_seal_keys: SQLite file with one encryption key for each request. Without it, texts are not encrypted.
            ``railbus audit forget`` destroys keys. All archivers of one archive share one file.
        audit_flush_ms: Maximum time that a record is buffered before it is written to a file, in milliseconds.
        audit_file_mb: If a partition's buffered records reach this size in megabytes, they are written to a file.
        audit_buffer_mb: Maximum size of the buffered records of all partitions, in megabytes. At this size, reading
            pauses until records have been written.
        audit_instance: A name that no other archiver has. A restart under the same name within the session timeout
            causes no rebalance.
    """

    archive: str | None = setting(None, "folder of the archive, or a URI such as s3://bucket/path")
    audit_key: Path = field(
        default=Path("audit-key.pem"), metadata={"help": "PEM file of the key that signs; made if missing"}
    )
    audit_anchors: Path | None = field(
        default=None, metadata={"help": "file for the newest checkpoints, on another host than the archive"}
    )
    audit_seal_keys: Path | None = field(
        default=None, metadata={"help": "SQLite file of the requests' keys: texts are encrypted"}
    )
    audit_flush_ms: int = setting(60_000, "longest wait of a record for its file", ge=50, le=86_400_000)
    audit_file_mb: int = setting(32, "size at which a file is written, before compression", ge=1, le=1_024)
    audit_buffer_mb: int = setting(128, "most that waits for all files", ge=2, le=16_384)
    audit_instance: str | None = setting(None, "name of this process, unique: a restart then causes no rebalance")
