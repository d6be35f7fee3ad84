"""The engine ``openai``: a server with OpenAI's chat completions API, such as vLLM, SGLang or llama.cpp."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import aiohttp
import msgspec

from services.generator.engines.chat_completions.client import CompletionsClient, transport_error
from services.generator.engines.chat_completions.errors import upstream_error
from services.generator.engines.chat_completions.parser import Endpoint
from services.generator.engines.upstream_metrics import UpstreamMetrics
from services.runtime.errors import UserError
from services.runtime.logging import logger
from services.runtime.settings import is_http_url
from services.worker.engine import (
    EngineError,
    EngineStats,
    EngineStep,
    GenerationResult,
    Job,
    NegativeLogLikelihood,
)

_log = logger("generator")

KEEPALIVE_S: Final = 4.0
"""Seconds after which an idle connection is closed. It is less than uvicorn's 5 s, so that the client closes first."""

MAX_RETRY_WAIT_S: Final = 5.0
"""Maximum wait between two tries to reach the upstream server at start, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAISettings:
    """Settings of the engine ``openai``, which uses any server with an OpenAI-compatible API.

    Attributes:
        upstream_url: URL of the server, with or without ``/v1``.
        upstream_key: API key, sent as a bearer token. It is never logged.
        model: Name of the server's model that answers requests for ``default``. If not set, the first in the server's
            list.
        upstream_connections: Maximum number of answers generated at the same time.
        upstream_connect_timeout_ms: Maximum time to connect to the server.
        upstream_read_timeout_ms: Maximum time without data from the server during an answer.
        upstream_body: Fields to add to each request's body, as a JSON object, such as ``{"cache_prompt": true}`` for
            llama.cpp's server. A field that Railbus sets itself is not overridden.
        upstream_step_usage: Whether to request exact token counts in every chunk. vLLM and SGLang support this.
    """

    upstream_url: str = field(default="", metadata={"help": "address of an OpenAI-compatible server"})
    upstream_key: str | None = field(
        default=None, repr=False, metadata={"help": "API key of the server", "secret": True}
    )
    model: str | None = field(default=None, metadata={"help": "model that answers requests for 'default'"})
    upstream_connections: int = field(
        default=256, metadata={"help": "maximum number of concurrent answers", "ge": 1, "le": 10_000}
    )
    upstream_connect_timeout_ms: int = field(
        default=2_000, metadata={"help": "maximum time to connect to the server", "ge": 1, "le": 600_000}
    )
    upstream_read_timeout_ms: int = field(
        default=30_000,
        metadata={"help": "maximum time without data from the server during an answer", "ge": 1, "le": 3_600_000},
    )
    upstream_body: str = field(default="", metadata={"help": "further fields of each request's body, a JSON object"})
    upstream_step_usage: Literal["on", "off"] = field(
        default="off", metadata={"help": "exact token counts in every chunk, from vLLM or SGLang"}
    )

    def extra(self) -> dict[str, Any]:
        """Return ``upstream_body`` as a dictionary.

        Raises:
            UserError: The setting is not a JSON object.
        """
        try:
            return msgspec.json.decode(self.upstream_body or "{}", type=dict[str, Any])
        except msgspec.DecodeError:
            raise UserError('RAILBUS_UPSTREAM_BODY must be a JSON object, such as {"cache_prompt": true}') from None

    def base(self) -> str:
        """Return the server's URL, ending in ``/v1``.

        Raises:
            UserError: ``upstream_url`` is not set or is not an HTTP URL, or it contains a user name and an API key is
                set.
        """
        if not self.upstream_url:
            raise UserError("engine openai needs RAILBUS_UPSTREAM_URL, such as http://127.0.0.1:8000")
        if not is_http_url(self.upstream_url):
            raise UserError("RAILBUS_UPSTREAM_URL must be an address such as http://127.0.0.1:8000")
        if self.upstream_key and "@" in urlsplit(self.upstream_url).netloc:
            raise UserError("RAILBUS_UPSTREAM_URL has a user's name: leave it out, or remove RAILBUS_UPSTREAM_KEY")
        base = self.upstream_url.rstrip("/")
        return base if base.endswith("/v1") else f"{base}/v1"


class _Listed(msgspec.Struct, frozen=True):
    id: str


class _Listing(msgspec.Struct, frozen=True):
    data: list[_Listed] = []


class _Logprobs(msgspec.Struct, frozen=True):
    token_logprobs: list[float | None]
    text_offset: list[int]


class _ScoredChoice(msgspec.Struct, frozen=True):
    logprobs: _Logprobs


class _ScoredCompletion(msgspec.Struct, frozen=True):
    choices: list[_ScoredChoice]

    def score(self, characters: int) -> NegativeLogLikelihood | None:
        if not self.choices:
            return None
        found = self.choices[0].logprobs
        values = [
            value
            for at, value in zip(found.text_offset, found.token_logprobs, strict=False)
            if value is not None and at < characters
        ]
        return NegativeLogLikelihood(nats=-sum(values), tokens=len(values)) if values else None


class OpenAIEngine:
    def __init__(self, settings: OpenAISettings) -> None:
        self.name = "openai"
        self.model = settings.model or "default"
        self.capacity = settings.upstream_connections
        self.preempts = False
        self._settings = settings
        self._base = settings.base()
        self._extra = settings.extra()
        self._session: aiohttp.ClientSession | None = None
        self._completions: CompletionsClient | None = None
        self._metrics: UpstreamMetrics | None = None

    async def start(self) -> None:
        """Open the connection pool. If no model is set, ask the server for its models until it answers.

        Raises:
            UserError: No model is set, and the server lists no models or refuses the key.
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
        endpoint = Endpoint(
            url=f"{self._base}/chat/completions",
            step_usage=settings.upstream_step_usage == "on",
            extra=self._extra,
        )
        self._completions = CompletionsClient(self._session, endpoint)
        if settings.model is None:
            self.model = await self._first_model(self._session)
        self._metrics = UpstreamMetrics(self._session, f"{self._base.removesuffix('/v1')}/metrics")
        await self._metrics.start()

    def resolve(self, model: str) -> str:
        """Replace ``default`` by the name of the default model. Return any other name unchanged."""
        return self.model if model == "default" else model

    def generate(self, job: Job) -> AsyncGenerator[EngineStep | GenerationResult, None]:
        if self._completions is None:
            raise RuntimeError("call start() first")
        return self._completions.stream(job)

    async def score(self, text: str) -> NegativeLogLikelihood | None:
        """Return the negative log-likelihood of a text; None if the server returns no log-probabilities for the text.

        Raises:
            EngineError: The server could not be reached.
        """
        if self._session is None:
            raise RuntimeError("call start() first")
        body = {"model": self.model, "prompt": text, "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 1}
        try:
            async with self._session.post(f"{self._base}/completions", json=body, allow_redirects=False) as response:
                if response.status != 200:
                    return None
                found = msgspec.json.decode(await response.read(), type=_ScoredCompletion)
        except (aiohttp.ClientError, OSError) as error:
            raise transport_error(error) from None
        except msgspec.DecodeError:
            return None
        return found.score(len(text))

    def stats(self) -> EngineStats:
        return EngineStats(running=0 if self._completions is None else self._completions.running)

    async def close(self) -> None:
        if self._metrics is not None:
            await self._metrics.stop()
        if self._session is not None:
            await self._session.close()

    async def _first_model(self, session: aiohttp.ClientSession) -> str:
        wait, warned = 0.1, False
        while True:
            try:
                return await self._ask_model(session)
            except (aiohttp.ClientError, OSError, EngineError) as error:
                if not warned:
                    reason = error if isinstance(error, EngineError) else transport_error(error)
                    _log.warning("upstream at RAILBUS_UPSTREAM_URL: %s; waiting", reason)
                warned = True
            await asyncio.sleep(wait)
            wait = min(MAX_RETRY_WAIT_S, wait * 2)

    async def _ask_model(self, session: aiohttp.ClientSession) -> str:
        async with session.get(f"{self._base}/models", allow_redirects=False) as response:
            if response.status in {401, 403}:
                raise UserError(
                    f"the upstream refused to list its models ({response.status}): set RAILBUS_UPSTREAM_KEY"
                )
            if response.status == 429 or response.status >= 500:  # it is busy, or still loads its model
                raise upstream_error(response.status, b"")
            try:
                listed = msgspec.json.decode(await response.read(), type=_Listing).data
            except (msgspec.DecodeError, UnicodeDecodeError):
                listed = []
            if response.status != 200 or not listed:
                raise UserError(
                    f"the upstream lists no model (status {response.status}): check RAILBUS_UPSTREAM_URL, or name the"
                    " model in RAILBUS_MODEL"
                )
            return listed[0].id
