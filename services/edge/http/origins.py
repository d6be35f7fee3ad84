"""Which web pages may use this edge: a foreign page in the owner's browser must not reach a local server."""

from dataclasses import dataclass
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
        host_name = "" if host is None else _split(f"//{host}", "Host").hostname
        if not self.keyed and not (host_name and is_loopback(host_name)):
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


def _split(url: str, header: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:  # such as an unclosed bracket
        raise ApiError(400, f"The header {header} is malformed.", code="invalid_header", param=header) from None
