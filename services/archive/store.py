"""Storage of an archive: a local folder, or an object store that pyarrow supports."""

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from services.archive.extras import need
from services.runtime.errors import UserError
from services.runtime.files import sync_folder

ABANDONED_S: Final = 3_600.0
"""Age in seconds from which a temporary file is assumed to be of a killed process, and is removed."""


class Exists(Exception):
    pass


class Store:
    """The files of one archive.

    Args:
        location: A folder, or a URI such as ``s3://bucket/path?endpoint_override=...``.

    Attributes:
        location: The location without credentials, for messages.
        is_folder: Whether the archive is in a folder of this host, and not in an object store.

    Raises:
        UserError: The location cannot be used.
    """

    def __init__(self, location: str) -> None:
        fs = need("pyarrow.fs")
        self.location = _without_credentials(location)
        uri = location if "://" in location else str(Path(location).absolute())
        try:
            self.filesystem, self._root = fs.FileSystem.from_uri(uri)
        except (ValueError, OSError) as error:
            reason = str(error).replace(location, self.location)[:300]  # pyarrow's message repeats the location
            raise UserError(f"the archive {self.location}: {reason}") from None
        self.is_folder = self.filesystem.type_name == "local"

    def path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def exists(self, name: str) -> bool:
        return bool(self.filesystem.get_file_info(self.path(name)).is_file)

    def read(self, name: str) -> bytes:
        """Return a file's content.

        Raises:
            OSError: The file cannot be read.
        """
        with self.filesystem.open_input_file(self.path(name)) as file:
            return bytes(file.read())

    def names(self, folder: str, *, recursive: bool = False) -> Iterator[str]:
        """Yield the paths of the files and folders in a folder, relative to the archive.

        Raises:
            UserError: A name is not UTF-8.
        """
        fs = need("pyarrow.fs")
        selector = fs.FileSelector(self.path(folder), allow_not_found=True, recursive=recursive)
        try:
            found = [info.path for info in self.filesystem.get_file_info(selector)]
        except UnicodeDecodeError:
            raise UserError(
                f"the archive {self.location}: a file in {folder} has a name that is not UTF-8: remove it"
            ) from None
        for path in found:
            yield path[len(self._root) + 1 :]

    def put_new(self, name: str, content: Any) -> None:
        """Create a file atomically and durably.

        Raises:
            Exists: The file exists already.
            OSError: The file cannot be written.
        """
        if not self.is_folder:
            # pyarrow has no conditional write, so another process can create the file between this check and the write.
            # Only the consumer group prevents that: it assigns a partition to one archiver at a time.
            if self.exists(name):
                raise Exists(name)
            with self.filesystem.open_output_stream(self.path(name)) as file:
                file.write(content)
            return
        target, temporary = Path(self.path(name)), Path(self.path(f"tmp/{secrets.token_hex(8)}"))
        for folder in (target.parent, temporary.parent):
            folder.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(temporary, target)
            except FileExistsError:
                raise Exists(name) from None
            sync_folder(target.parent)
        finally:
            temporary.unlink(missing_ok=True)

    def remove_abandoned(self) -> None:
        if not self.is_folder:
            return
        with suppress(OSError):
            for path in Path(self.path("tmp")).iterdir():
                if time.time() - path.stat().st_mtime > ABANDONED_S:
                    path.unlink(missing_ok=True)


def _without_credentials(location: str) -> str:
    # A secret may contain any character, such as "/" or "@". So everything before the last "@" is left out.
    scheme, there, rest = location.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}" if there else location
