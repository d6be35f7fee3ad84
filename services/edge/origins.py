"""Which web pages may talk to this edge. A random page in the owner's browser must not be able to use a local one."""

from dataclasses import dataclass
from urllib.parse import urlsplit

from services.edge.errors import ApiError
from services.runtime.addresses import is_loopback


@dataclass(frozen=True, slots=True)
class Origins:
    """The rule.

    Attributes:
        keyed: Requests need an API key, which a foreign page does not have.
        allowed: Further origins, such as ``https://chat.example.org``.
    """

    keyed: bool
    allowed: frozenset[str] = frozenset()

    def check(self, host: str | None, origin: str | None) -> None:
        """Refuse a foreign page: by its ``Origin``, and by ``Host``, which gives a rebound DNS name away.

        Raises:
            ApiError: 403.
        """
        if not self.keyed and not (host and is_loopback(_name(host))):
            raise ApiError(
                403, "Without API keys this server answers to loopback names only, such as 127.0.0.1 or localhost.",
                code="host_not_allowed",
            )  # fmt: skip
        if origin is None or origin in self.allowed:
            return
        if host is None or urlsplit(origin).netloc.lower() != host.lower():
            raise ApiError(
                403, "Pages of other origins may not use this server: name them in RAILBUS_ALLOWED_ORIGINS.",
                code="origin_not_allowed",
            )  # fmt: skip


def _name(host: str) -> str:
    """``host:port`` without its port."""
    return urlsplit(f"//{host}").hostname or ""
