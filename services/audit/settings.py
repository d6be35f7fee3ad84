"""The archiver's settings."""

from dataclasses import dataclass, field
from pathlib import Path

from services.runtime.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of the archiver, which keeps every record for longer than the log does.

    Attributes:
        archive: Folder of the archive, or a URI that pyarrow reads, such as ``s3://bucket/path``. All archivers of one
            log have the same archive.
        audit_key: PEM file of the Ed25519 key that signs checkpoints; made if it does not exist. Keep it outside the
            archive, because whoever has the key can write and sign another history.
        audit_anchors: File with the newest checkpoint of each partition that this archiver wrote. If the file is on
            another host than the archive, it proves that no records were cut off at the archive's end. If this is not
            set, no file is written.
        audit_seal_keys: SQLite file with one key for each request. Texts are encrypted with these keys, and
            ``railbus audit forget`` destroys keys. If it is not set, texts are not encrypted. All archivers
            of one archive share one file.
        audit_flush_ms: A file is written when its oldest record was buffered for this time, in milliseconds.
        audit_file_mb: A file is written when this number of megabytes is buffered for it.
        audit_buffer_mb: Maximum number of megabytes that are buffered for all files. At this limit reading pauses.
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
