"""Ed25519 keys that sign and verify checkpoints."""

import base64
import hashlib
import os
import secrets
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from services.archive.checkpoint import ChainCheckpoint
from services.archive.extras import need
from services.runtime.errors import UserError
from services.runtime.files import write_whole


class Signer:
    def __init__(self, private: Any) -> None:
        self._private = private
        self.public_pem = _public_pem(private.public_key())
        self.name = key_name(self.public_pem)

    @classmethod
    def load_or_create(cls, path: Path) -> "Signer":
        """Read the private key from a PEM file, or create it. Write ``PATH.pub``, the public key, if it is missing.

        Raises:
            UserError: A file cannot be read or written, or the file ``path`` exists and has no Ed25519 private key.
        """
        ed25519 = need("cryptography.hazmat.primitives.asymmetric.ed25519")
        serialization = need("cryptography.hazmat.primitives.serialization")
        try:
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                pem = ed25519.Ed25519PrivateKey.generate().private_bytes(
                    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
                )
                _create(path, pem)
            private = serialization.load_pem_private_key(path.read_bytes(), None)
            if not isinstance(private, ed25519.Ed25519PrivateKey):
                raise UserError(f"RAILBUS_AUDIT_KEY={path}: holds no Ed25519 key")
            signer = cls(private)
            public = path.with_name(path.name + ".pub")
            if not public.exists():
                write_whole(public, signer.public_pem)
        except OSError as error:
            raise UserError(f"RAILBUS_AUDIT_KEY={path}: {error.strerror}") from None
        except (ValueError, TypeError):
            raise UserError(f"RAILBUS_AUDIT_KEY={path}: is no PEM file of an Ed25519 key without a password") from None
        return signer

    def sign(self, checkpoint: ChainCheckpoint) -> ChainCheckpoint:
        unsigned = replace(checkpoint, signer=self.name)
        return replace(unsigned, signature=base64.b64encode(self._private.sign(unsigned.signed_bytes)).decode())


class Verifier:
    def __init__(self, pems: list[bytes]) -> None:
        serialization = need("cryptography.hazmat.primitives.serialization")
        keys = map(serialization.load_pem_public_key, pems)
        self._keys = {key_name(_public_pem(key)): key for key in keys}  # a copy may have other line ends

    @classmethod
    def load(cls, paths: list[Path]) -> "Verifier":
        """Read public keys from PEM files.

        Raises:
            UserError: A file cannot be read or has no public key.
        """
        try:
            return cls([path.read_bytes() for path in paths])
        except OSError as error:
            raise UserError(f"--public-key {error.filename}: {error.strerror}") from None
        except ValueError:
            raise UserError(f"--public-key {', '.join(map(str, paths))}: is no PEM file of a public key") from None

    def is_signed(self, checkpoint: ChainCheckpoint) -> bool:
        key = self._keys.get(checkpoint.signer)
        if key is None:
            return False
        try:
            key.verify(checkpoint.signature_bytes, checkpoint.signed_bytes)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with it, it is not signed
            del error
            return False
        return True


def key_name(pem: bytes) -> str:
    """Return the key's short name: the first 16 hex digits of the SHA-256 of its PEM text."""
    return hashlib.sha256(pem).hexdigest()[:16]


def _create(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _public_pem(public: Any) -> bytes:
    serialization = need("cryptography.hazmat.primitives.serialization")
    return bytes(public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo))
