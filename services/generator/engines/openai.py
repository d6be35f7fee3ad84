"""Any server that speaks OpenAI's chat completions over HTTP: vLLM, SGLang, llama.cpp and others."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Final, Literal
from urllib.parse import urlsplit

import aiohttp
import msgspec

from services.generator.engines.answer import Endpoint
from services.generator.engines.completions import Completions, lost
from services.generator.engines.upstream_metrics import UpstreamMetrics
from services.runtime.errors import UserError
from services.runtime.logging import logger
from services.worker.engine import Done, EngineStats, Job, Step

_log = logger("generator")

KEEPALIVE_S: Final = 4.0
"""An idle connection is given up before the usual server (uvicorn: 5 s) closes it."""

LONGEST_WAIT_S: Final = 5.0
"""Between two looks for an upstream that is away at start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAISettings:
    """The upstream.

    Attributes:
        upstream_url: Its address, with or without ``/v1``.
        upstream_key: Sent as a bearer token; never logged.
        model: The model that answers to ``default``; None takes the first that the upstream lists.
        upstream_connections: Most answers at once.
        upstream_connect_timeout_ms: For a connection to stand.
        upstream_read_timeout_ms: Longest silence on a connection.
        upstream_step_usage: Ask for exact token counts in every chunk (vLLM and SGLang know how).
    """

    upstream_url: str = field(default="", metadata={"help": "address of an OpenAI-compatible server"})
    upstream_key: str | None = field(default=None, repr=False, metadata={"help": "its API key", "secret": True})
    model: str | None = field(default=None, metadata={"help": "model that answers to 'default'"})
    upstream_connections: int = field(default=256, metadata={"help": "most answers at once", "ge": 1, "le": 10_000})
    upstream_connect_timeout_ms: int = field(
        default=2_000, metadata={"help": "for a connection to stand", "ge": 1, "le": 600_000}
    )
    upstream_read_timeout_ms: int = field(
        default=30_000, metadata={"help": "longest silence of the upstream", "ge": 1, "le": 3_600_000}
    )
    upstream_step_usage: Literal["on", "off"] = field(
        default="off", metadata={"help": "exact token counts in every chunk, from vLLM or SGLang"}
    )

    def base(self) -> str:
        """The address up to and with ``/v1``.

        Raises:
            UserError: It is missing, or not an HTTP address.
        """
        if not self.upstream_url:
            raise UserError("engine openai needs RAILBUS_UPSTREAM_URL, such as http://127.0.0.1:8000")
        if not _is_address(self.upstream_url):
            raise UserError("RAILBUS_UPSTREAM_URL must be an address such as http://127.0.0.1:8000")
        base = self.upstream_url.rstrip("/")
        return base if base.endswith("/v1") else f"{base}/v1"


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none
        return False


class _Listed(msgspec.Struct, frozen=True):
    id: str


class _Listing(msgspec.Struct, frozen=True):
    data: list[_Listed] = []


class OpenAIEngine:
    """Engine ``openai``."""

    def __init__(self, settings: OpenAISettings) -> None:
        self.name = "openai"
        self.model = settings.model or "default"
        self.capacity = settings.upstream_connections
        self._settings = settings
        self._base = settings.base()
        self._session: aiohttp.ClientSession | None = None
        self._completions: Completions | None = None
        self._metrics: UpstreamMetrics | None = None

    async def start(self) -> None:
        """Finds the model, waiting for the upstream when it is away.

        Raises:
            UserError: The upstream lists no model, or refuses to.
        """
        settings = self._settings
        key = settings.upstream_key
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self.capacity, keepalive_timeout=KEEPALIVE_S),
            timeout=aiohttp.ClientTimeout(
                total=None,
                sock_connect=settings.upstream_connect_timeout_ms / 1e3,
                sock_read=settings.upstream_read_timeout_ms / 1e3,
            ),
            headers={"Authorization": f"Bearer {key}"} if key else None,
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        endpoint = Endpoint(url=f"{self._base}/chat/completions", step_usage=settings.upstream_step_usage == "on")
        self._completions = Completions(self._session, endpoint)
        if settings.model is None:
            self.model = await self._first_model(self._session)
        self._metrics = UpstreamMetrics(self._session, f"{self._base.removesuffix('/v1')}/metrics")
        await self._metrics.start()

    def resolve(self, model: str) -> str:
        """The upstream decides which models it serves; ``default`` is ours to name."""
        return self.model if model == "default" else model

    def generate(self, job: Job) -> AsyncGenerator[Step | Done, None]:
        """One streamed completion."""
        if self._completions is None:
            raise RuntimeError("start() comes first")
        return self._completions.stream(job)

    def stats(self) -> EngineStats:
        """Open answers."""
        return EngineStats(running=0 if self._completions is None else self._completions.running)

    async def close(self) -> None:
        """Closes every connection."""
        if self._metrics is not None:
            await self._metrics.stop()
        if self._session is not None:
            await self._session.close()

    async def _first_model(self, session: aiohttp.ClientSession) -> str:
        wait, said = 0.1, False
        while True:
            try:
                return await self._ask_model(session)
            except (aiohttp.ClientError, OSError) as error:
                if not said:
                    _log.warning("upstream at RAILBUS_UPSTREAM_URL: %s; waiting", lost(error))
                said = True
            await asyncio.sleep(wait)
            wait = min(LONGEST_WAIT_S, wait * 2)

    async def _ask_model(self, session: aiohttp.ClientSession) -> str:
        async with session.get(f"{self._base}/models", allow_redirects=False) as response:
            if response.status in {401, 403}:
                raise UserError(f"the upstream answered {response.status} to its model list: set RAILBUS_UPSTREAM_KEY")
            if response.status >= 500:
                raise aiohttp.ClientConnectionError(f"status {response.status}")
            try:
                listed = msgspec.json.decode(await response.read(), type=_Listing).data
            except msgspec.DecodeError:
                listed = []
            if response.status != 200 or not listed:
                raise UserError(
                    f"the upstream lists no model (status {response.status}): check RAILBUS_UPSTREAM_URL, or name the"
                    " model in RAILBUS_MODEL"
                )
            return listed[0].id
