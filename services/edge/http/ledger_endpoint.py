"""The endpoint ``/ledger/data``, for the page at ``/ledger``."""

import re
from collections.abc import Mapping
from typing import Final

from aiohttp import web

from services.edge.errors import ApiError
from services.edge.http.access.api_keys import ApiKeys
from services.edge.ledger.report import Query
from services.edge.ledger.window_reader import WindowReader
from services.edge.ledger.window_store import SPAN_S
from services.runtime.settings import parse_count

MOST_MINUTES: Final = SPAN_S // 60
_CLASS: Final = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_TENANT: Final = re.compile(r"[^\x00-\x1f]{1,256}")


class LedgerEndpoint:
    """The handler of ``/ledger/data``.

    Args:
        readers_of_all: Tenants whose keys may see the sums of every tenant. Any other key may see only the sums of its
            tenant.
    """

    def __init__(self, reader: WindowReader, keys: ApiKeys, readers_of_all: frozenset[str]) -> None:
        self._reader = reader
        self._keys = keys
        self._readers_of_all = readers_of_all

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/ledger/data", self.data)]

    async def data(self, request: web.Request) -> web.Response:
        """Return the ledger's sums of the last hour as JSON.

        The query parameters ``minutes``, ``tenant`` and ``class`` select a part of the sums. If the edge has API keys,
        the tenants in ``RAILBUS_METRICS_TENANTS`` see the sums of all tenants. Any other tenant sees only its own sums.
        """
        tenant = self._keys.tenant_of(request.headers)
        sees_all = self._keys.allows_anonymous or tenant in self._readers_of_all
        report = await self._reader.report(None if sees_all else tenant, parse_query(request.query))
        return web.Response(body=report, content_type="application/json")


def parse_query(query: Mapping[str, str]) -> Query:
    """Parse the query parameters ``minutes``, ``tenant`` and ``class``, all of which are optional.

    Raises:
        ApiError: 400, if a parameter is malformed.
    """
    minutes = parse_count(query.get("minutes", str(MOST_MINUTES)), MOST_MINUTES)
    if minutes is None:
        raise _invalid("minutes", f"a whole number between 1 and {MOST_MINUTES}")
    service_class = query.get("class") or None
    if service_class is not None and not _CLASS.fullmatch(service_class):
        raise _invalid("class", "the name of a class")
    tenant = query.get("tenant") or None
    if tenant is not None and not _TENANT.fullmatch(tenant):
        raise _invalid("tenant", "a name of at most 256 characters")
    return Query(minutes, tenant, service_class)


def _invalid(name: str, allowed: str) -> ApiError:
    return ApiError(400, f"{name} must be {allowed}.", code="invalid_value", param=name)
