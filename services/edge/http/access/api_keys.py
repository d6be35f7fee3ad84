"""API keys. A file maps the SHA-256 hash of each key to a tenant."""

import hashlib
import hmac
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from services.edge.errors import ApiError
from services.runtime.errors import UserError

LOCAL_TENANT: Final = "local"
MAX_KEYS: Final = 1_000
"""Maximum number of keys in the file. Comparing a request's key with this many takes about 0.2 ms."""
_HASH: Final = re.compile(r"[0-9a-f]{64}")
_TENANT: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, slots=True)
class ApiKeys:
    """The valid API keys.

    Attributes:
        tenants: The tenant of each key, by the SHA-256 hash of the key. If None, no key is needed, and every request
            belongs to the tenant ``local``.
    """

    tenants: dict[str, str] | None = None

    @property
    def allows_anonymous(self) -> bool:
        return self.tenants is None

    def tenant(self, key: str | None) -> str:
        """Return the tenant of a key.

        Raises:
            ApiError: 401, if the key is missing or not valid.
        """
        if self.tenants is None:
            return LOCAL_TENANT
        if not key:
            raise ApiError(401, "An API key is needed: send 'Authorization: Bearer KEY'.", code="missing_api_key")
        digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
        found = None  # every hash is compared, so that the time says nothing about the key
        for known, tenant in self.tenants.items():
            if hmac.compare_digest(known, digest):
                found = tenant
        if found is None:
            raise ApiError(401, "The API key is not valid.", code="invalid_api_key")
        return found

    def tenant_of(self, headers: Mapping[str, str]) -> str:
        return self.tenant(bearer_token(headers))


def bearer_token(headers: Mapping[str, str]) -> str | None:
    scheme, _, key = headers.get("Authorization", "").partition(" ")
    return key.strip() or None if scheme.lower() == "bearer" else None


def load_keys(path: str | None) -> ApiKeys:
    """Load a TOML or JSON file with a table ``keys`` that maps the SHA-256 of each key, in hex, to a tenant.

    Raises:
        UserError: The file cannot be read, or has no such table.
    """
    if not path:
        return ApiKeys()
    try:
        raw = Path(path).read_bytes()
        content: Any = orjson.loads(raw) if path.endswith(".json") else tomllib.loads(raw.decode())
    except (OSError, ValueError) as error:
        raise UserError(f"RAILBUS_API_KEYS_FILE {path}: {error}; it must be a TOML or .json file") from None
    return ApiKeys(_checked(path, content))


def _checked(path: str, content: Any) -> dict[str, str]:
    keys = content.get("keys") if isinstance(content, dict) else None
    if not isinstance(keys, dict) or not keys:
        raise UserError(f"RAILBUS_API_KEYS_FILE {path}: it must hold a table [keys] of SHA-256 hashes to tenants")
    if len(keys) > MAX_KEYS:
        raise UserError(f"RAILBUS_API_KEYS_FILE {path}: {len(keys)} keys; at most {MAX_KEYS} are allowed")
    for digest, tenant in keys.items():
        if not _HASH.fullmatch(digest):
            raise UserError(
                f"RAILBUS_API_KEYS_FILE {path}: {digest[:8]}... is not a SHA-256 in lower-case hex; "
                "make one with: printf %s KEY | sha256sum"
            )
        if not isinstance(tenant, str) or not _TENANT.fullmatch(tenant):
            raise UserError(
                f"RAILBUS_API_KEYS_FILE {path}: the tenant of {digest[:8]}... must be 1 to 64 of A-Z a-z 0-9 . _ -"
            )
    return dict(keys)
