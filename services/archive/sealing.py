"""Encryption of archived values. Each request has its own AES-256-GCM key, stored outside the archive."""

import os
import secrets
import sqlite3
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import compress
from pathlib import Path
from typing import Any, Final

from schemas.errors import UnreadableEvent
from schemas.wire import decode
from services.archive.chain import ArchivedRecord, QueryFields
from services.archive.extras import need
from services.bus import StoredRecord
from services.runtime.errors import UserError

OPEN_KINDS: Final = frozenset(
    {
        "Started",
        "Finished",
        "Failed",
        "Cutover",
        "Cleared",
        "Closed",
        "Cancel",
        "Attached",
        "Detached",
        "Account",
        "Window",
    }
)
"""Kinds without text of a person or a model. Values of all other kinds are sealed, including unknown kinds, and values
that cannot be read as their kind."""

NONCE_BYTES: Final = 12
KEY_BYTES: Final = 32
CACHED_KEYS: Final = 4_096
WAIT_S: Final = 30.0
"""Maximum time to wait for another process that writes keys, in seconds."""

WITHOUT_REQUEST: Final = ""
"""The request id under which the keys of values without a request, such as dead letters, are kept. There is one such
key for each tenant, and one for all values without a tenant."""


class KeyStore:
    """The encryption keys of all requests, in one SQLite file. Several processes on one host may share the file.

    Args:
        path: The SQLite file.
        create: Whether to create the file if it does not exist.

    Raises:
        UserError: The file does not exist or cannot be used.
    """

    def __init__(self, path: Path, *, create: bool = False) -> None:
        if not create and not path.exists():
            raise UserError(f"the key store {path} does not exist: name the archiver's RAILBUS_AUDIT_SEAL_KEYS")
        try:
            if create and not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
            self._connection = sqlite3.connect(path, timeout=WAIT_S, isolation_level=None, check_same_thread=False)
            self._connection.execute("PRAGMA secure_delete=ON")  # a deleted key is overwritten, not only unlinked
            self._connection.execute("PRAGMA synchronous=FULL")  # a key is on disk before anything it seals
            if create:
                self._connection.execute(
                    "CREATE TABLE IF NOT EXISTS keys (request_id TEXT, tenant TEXT, key BLOB NOT NULL,"
                    " PRIMARY KEY (request_id, tenant)) WITHOUT ROWID"
                )
            self._connection.execute("SELECT key FROM keys LIMIT 0")  # fails if this is another file
        except (OSError, sqlite3.Error) as error:
            raise UserError(f"the key store {path} cannot be used: {error}") from None
        self._get = lru_cache(CACHED_KEYS)(self._look_up)

    def close(self) -> None:
        self._connection.close()

    def make(self, whose: Sequence[tuple[str, str]]) -> dict[tuple[str, str], bytes]:
        """Return the key of each request. Create the missing keys.

        ``whose`` has pairs of request id and tenant.

        Raises:
            OSError: The key store cannot be written now. Perhaps the disk is full, or another process has locked it.
        """
        # Not from the cache: another process, ``railbus audit forget``, may have destroyed a key that is cached here.
        # What is encrypted with such a key could never be read.
        try:
            with self._connection:
                self._connection.execute("BEGIN IMMEDIATE")
                self._connection.executemany(
                    "INSERT OR IGNORE INTO keys VALUES (?, ?, ?)",
                    [(*each, secrets.token_bytes(KEY_BYTES)) for each in whose],
                )
                found = {each: self._look_up(*each) for each in whose}
                self._connection.execute("COMMIT")
        except sqlite3.OperationalError as error:  # so that the archiver tries again, as with the archive itself
            raise OSError(f"the key store: {error}") from error
        return {each: key for each, key in found.items() if key is not None}

    def key(self, request_id: str, tenant: str) -> bytes | None:
        return self._get(request_id, tenant)

    def forget(self, *, request_id: str | None = None, tenant: str | None = None) -> int:
        """Destroy the keys of a request or of a tenant. Return the number of destroyed keys.

        Raises:
            UserError: The file cannot be written. Some keys may be destroyed already.
        """
        self._get.cache_clear()
        column, value = ("request_id", request_id) if request_id is not None else ("tenant", tenant)
        try:
            found = self._connection.execute(f"DELETE FROM keys WHERE {column} = ?", (value,)).rowcount  # noqa: S608 - ours
            self._connection.execute("VACUUM")
        except sqlite3.OperationalError as error:
            raise UserError(f"the key store cannot be written: {error}; run this again") from None
        return found

    def _look_up(self, request_id: str, tenant: str) -> bytes | None:
        row = self._connection.execute(
            "SELECT key FROM keys WHERE request_id = ? AND tenant = ?", (request_id, tenant)
        ).fetchone()
        return None if row is None else bytes(row[0])


def seal_all(records: Sequence[tuple[StoredRecord, QueryFields]], keys: KeyStore) -> list[ArchivedRecord]:
    """Encrypt the values that may contain text of a user or a model. Create missing keys."""
    secret = [not _is_open(record, fields) for record, fields in records]
    wanted = {owner_of(fields.request_id, fields.tenant) for _, fields in compress(records, secret)}
    made = keys.make(sorted(wanted)) if wanted else {}
    return [
        _seal(record, fields, made) if is_secret else ArchivedRecord(record, fields)
        for (record, fields), is_secret in zip(records, secret, strict=True)
    ]


def unseal(record: StoredRecord, owner: tuple[str, str], keys: KeyStore | None) -> StoredRecord:
    """Return the record with its value decrypted; the value is None if it cannot be decrypted.

    ``owner`` is a request id and a tenant, as from ``owner_of``. It selects the key.
    """
    key = None if keys is None else keys.key(*owner)
    if key is None or record.value is None:
        return record._replace(value=None)
    aead, invalid = need("cryptography.hazmat.primitives.ciphers.aead"), need("cryptography.exceptions").InvalidTag
    nonce, ciphertext = record.value[:NONCE_BYTES], record.value[NONCE_BYTES:]
    try:
        return record._replace(value=aead.AESGCM(key).decrypt(nonce, ciphertext, _place(record)))
    except (invalid, ValueError):  # a ValueError if the value is shorter than a nonce
        return record._replace(value=None)


def _seal(record: StoredRecord, fields: QueryFields, keys: Mapping[tuple[str, str], bytes]) -> ArchivedRecord:
    if record.value is None:
        return ArchivedRecord(record, fields)
    key = keys[owner_of(fields.request_id, fields.tenant)]
    nonce = secrets.token_bytes(NONCE_BYTES)
    # The record's position is authenticated too, so a value that was moved to another record cannot be decrypted.
    sealed = nonce + _aead(key).encrypt(nonce, record.value, _place(record))
    return ArchivedRecord(record._replace(value=sealed), fields, sealed=True)


def _is_open(record: StoredRecord, fields: QueryFields) -> bool:
    if fields.kind not in OPEN_KINDS:
        return False
    try:
        decode(record.value, record.headers, record.key)  # type: ignore[arg-type]
    except UnreadableEvent:  # the kind is what its writer says; the value may be anything, such as a request
        return False
    return True


def owner_of(request_id: str | None, tenant: str | None) -> tuple[str, str]:
    return request_id or WITHOUT_REQUEST, tenant or ""


def _aead(key: bytes) -> Any:
    return need("cryptography.hazmat.primitives.ciphers.aead").AESGCM(key)


def _place(record: StoredRecord) -> bytes:
    return f"{record.topic}/{record.partition}/{record.offset}".encode()
