"""Decide which web pages may use this edge."""

from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import SplitResult, urlsplit

from services.edge.errors import ApiError
from services.runtime.settings import is_loopback


@dataclass(frozen=True, slots=True)
class OriginGuard:
    """Checks the headers ``Host`` and ``Origin`` of requests.

    Attributes:
        keyed: Whether requests need an API key.
        allowed: The allowed origins besides the edge's own, such as ``https://chat.example.org``.
    """

    keyed: bool
    allowed: frozenset[str] = frozenset()

    def check(self, host: str | None, origin: str | None) -> None:
        """Refuse a request from a web page that is not allowed to use this edge.

        Raises:
            ApiError: 403, if the request is refused; 400, if a header is malformed.
        """
        # Without API keys, only loopback names are answered. This stops DNS rebinding.
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
    name = _split(f"//{host}", "Host").hostname
    return name is not None and is_loopback(name)


def _split(url: str, header: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:  # such as an unclosed bracket
        raise ApiError(400, f"The header {header} is malformed.", code="invalid_header", param=header) from None
