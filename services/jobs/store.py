"""Store the files of jobs: inputs, results, and the working files of each job."""

import contextlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Literal, Protocol

import msgspec

from services.jobs.ids import FILE_PREFIX
from services.runtime.errors import UserError
from services.runtime.files import sync_folder, write_whole

FilePurpose = Literal["batch", "batch_output"]

ABANDONED_S: Final = 86_400.0
"""A process that was killed leaves a part of a file. After this many seconds without a write, the part is removed."""

_FILE_ID: Final = re.compile(r"file-[0-9a-z]{1,40}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """The metadata of a file.

    Attributes:
        filename: The name that the tenant gave an input. A result file has a generated name.
        purpose: ``batch`` for the input of a job, ``batch_output`` for a result file.
        length: Length in bytes.
        created_s: When the file was stored, in seconds since the epoch.
    """

    file_id: str
    tenant: str
    filename: str
    purpose: FilePurpose
    length: int
    created_s: int


class JobStore(Protocol):
    """The interface of a store for the files of jobs."""

    def writing(self, file_id: str, tenant: str, filename: str, purpose: FilePurpose, created_s: int) -> "Writing":
        """Return a context manager that opens a new file. The file exists only if the block ends without an error."""

    def find(self, file_id: str) -> StoredFile | None:
        """Return the metadata of a file, or None if there is no such file."""

    def open(self, file_id: str) -> BinaryIO:
        """Open a file for reading.

        Raises:
            FileNotFoundError: There is no such file.
        """

    def files(self, tenant: str) -> list[StoredFile]:
        """Return the metadata of a tenant's files, newest first."""

    def delete(self, file_id: str) -> None:
        """Delete a file. Do nothing if there is no such file."""

    def work_folder(self, batch_id: str) -> Path:
        """Return the folder of a job's working files. Create it if it does not exist."""


Writing = contextlib.AbstractContextManager[BinaryIO]


class FolderStore:
    """A ``JobStore`` in a folder.

    Raises:
        UserError: The folder cannot be used.
    """

    def __init__(self, folder: Path) -> None:
        self._files, self._jobs = folder / "files", folder / "jobs"
        try:
            for each in (self._files, self._jobs):
                each.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise UserError(f"RAILBUS_BATCH_DIR={folder} cannot be used ({error.strerror}): name another") from None
        self._remove_abandoned()

    @contextmanager
    def writing(
        self, file_id: str, tenant: str, filename: str, purpose: FilePurpose, created_s: int
    ) -> Iterator[BinaryIO]:
        fresh = self._files / f".{file_id}.{secrets.token_hex(4)}"
        try:
            with fresh.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
                length = file.tell()
            known = StoredFile(
                file_id=file_id, tenant=tenant, filename=filename, purpose=purpose, length=length, created_s=created_s
            )
            write_whole(self._files / f"{file_id}.json", msgspec.json.encode(known))
            fresh.replace(self._files / file_id)
            sync_folder(self._files)
        finally:
            fresh.unlink(missing_ok=True)

    def _remove_abandoned(self) -> None:
        for path in self._files.glob(".*"):
            with contextlib.suppress(OSError):  # its writer may complete it meanwhile
                if time.time() - path.stat().st_mtime > ABANDONED_S:
                    path.unlink(missing_ok=True)

    def find(self, file_id: str) -> StoredFile | None:
        if _FILE_ID.fullmatch(file_id) is None or not (self._files / file_id).exists():
            return None
        try:
            return msgspec.json.decode((self._files / f"{file_id}.json").read_bytes(), type=StoredFile)
        except (OSError, msgspec.DecodeError):
            return None

    def open(self, file_id: str) -> BinaryIO:
        if _FILE_ID.fullmatch(file_id) is None:
            raise FileNotFoundError(file_id)
        return (self._files / file_id).open("rb")

    def files(self, tenant: str) -> list[StoredFile]:
        names = (path.name.removesuffix(".json") for path in self._files.glob("file-*.json"))
        found = [file for name in names if (file := self.find(name)) is not None and file.tenant == tenant]
        return sorted(found, key=lambda file: (file.created_s, file.file_id), reverse=True)

    def delete(self, file_id: str) -> None:
        (self._files / file_id).unlink(missing_ok=True)
        (self._files / f"{file_id}.json").unlink(missing_ok=True)

    def work_folder(self, batch_id: str) -> Path:
        folder = self._jobs / batch_id
        folder.mkdir(exist_ok=True, mode=0o700)
        return folder

    def clean(self, batch_id: str) -> None:
        shutil.rmtree(self._jobs / batch_id, ignore_errors=True)


def new_file_id() -> str:
    return FILE_PREFIX + secrets.token_hex(12)
