"""The archiver's settings."""

from dataclasses import dataclass, field
from pathlib import Path

from services.runtime.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of the archiver.

    Attributes:
        archive: Folder of the archive, or a URI that pyarrow reads, such as ``s3://bucket/path``.
        audit_key: PEM file of the Ed25519 key that signs checkpoints; created if missing. Keep it outside the archive.
        audit_anchors: File for the newest checkpoint of each partition. Keep it on another host than the archive.
        audit_seal_keys: SQLite file with the encryption key of each request. Without it, texts are not encrypted.
        audit_flush_ms: Maximum time that a record is buffered before it is written to a file, in milliseconds.
        audit_file_mb: Size at which a partition's buffered records are written to a file, in MiB.
        audit_buffer_mb: Maximum size of all buffered records, in MiB. When it is reached, reading pauses.
        audit_instance: Unique name of this archiver. It avoids a rebalance after a quick restart.
    """

    archive: str | None = setting(None, "folder of the archive, or a URI such as s3://bucket/path")
    audit_key: Path = field(
        default=Path("audit-key.pem"),
        metadata={"help": "PEM file of the key that signs checkpoints; created if missing"},
    )
    audit_anchors: Path | None = field(
        default=None,
        metadata={"help": "file for each partition's newest checkpoint; keep it on another host than the archive"},
    )
    audit_seal_keys: Path | None = field(
        default=None,
        metadata={"help": "SQLite file with an encryption key for each request; if not set, texts are not encrypted"},
    )
    audit_flush_ms: int = setting(
        60_000, "maximum time that a record is buffered before it is written to a file", ge=50, le=86_400_000
    )
    audit_file_mb: int = setting(
        32, "size in MiB, before compression, at which a partition's records are written to a file", ge=1, le=1_024
    )
    audit_buffer_mb: int = setting(
        128, "maximum size in MiB of all records that wait to be written to files", ge=2, le=16_384
    )
    audit_instance: str | None = setting(
        None, "unique name of this archiver, so that a quick restart causes no rebalance"
    )
