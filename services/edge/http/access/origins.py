"""Decide which web pages may use this edge, so that a foreign page in the owner's browser reaches no local server."""

from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import SplitResult, urlsplit

from services.edge.errors import ApiError
from services.runtime.settings import is_loopback


@dataclass(frozen=True, slots=True)
class OriginGuard:
    """The check of ``Host`` and ``Origin``.

    Attributes:
        keyed: Whether requests need an API key, which a foreign page does not have.
        allowed: Further origins, such as ``https://chat.example.org``.
    """

    keyed: bool
    allowed: frozenset[str] = frozenset()

    def check(self, host: str | None, origin: str | None) -> None:
        """Refuse a foreign page by its ``Origin``, and a rebound DNS name by ``Host``.

        Raises:
            ApiError: 403; or 400, when a header is malformed.
        """
        is_local = host is not None and _is_local(host)
        if not self.keyed and not is_local:
            raise ApiError(
                403, "Without API keys this server answers only to loopback names, such as 127.0.0.1 or localhost.",
                code="host_not_allowed",
            )  # fmt: skip
        if origin is None or origin in self.allowed:
            return
        if host is None or _split(origin, "Origin").netloc.lower() != host.lower():
            raise ApiError(
                403, "Pages of other origins may not use this server: name them in RAILBUS_ALLOWED_ORIGINS.",
                code="origin_not_allowed",
            )  # fmt: skip


@lru_cache(maxsize=256)
def _is_local(host: str) -> bool:
    """Return whether a ``Host`` means this machine."""
    name = _split(f"//{host}", "Host").hostname
    return name is not None and is_loopback(name)


def _split(url: str, header: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:  # such as an unclosed bracket
        raise ApiError(400, f"The header {header} is malformed.", code="invalid_header", param=header) from None
