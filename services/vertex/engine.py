"""The engine ``vertex``, which gets answers from Vertex AI."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any, Final

import aiohttp
import google.auth
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError, TransportError
from google.genai import errors
from google.oauth2.credentials import Credentials

from services.runtime.clock import steady_us
from services.runtime.errors import UserError
from services.vertex.client import VertexClient
from services.vertex.errors import retry_wait_us, status_error, status_meaning
from services.vertex.mapping import GenerateContentParser, request_body
from services.vertex.settings import VertexSettings
from services.worker.engine import EngineError, EngineStats, EngineStep, GenerationResult, Job

SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"

SIGN_IN_TIMEOUT_S: Final = 20.0
"""Maximum number of seconds to search for credentials. On Google Cloud, the search includes the metadata server."""

EMULATED_PROJECT: Final = "emulated"

_CREDENTIALS_HELP: Final = (
    "run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS to the key file of a service"
    " account; without an account, use the emulator: `railbus up --vertex-emulator`"
)

_KEY_FILE_ERRORS: Final = (GoogleAuthError, AttributeError, LookupError, TypeError, ValueError)
"""What Google's library raises for a malformed key file. It does not check the types of the file's values."""

_CLIENT_ERRORS: Final = (errors.APIError, aiohttp.ClientError, GoogleAuthError, OSError)


class VertexEngine:
    name = "vertex"

    def __init__(self, settings: VertexSettings) -> None:
        self._settings = settings
        self.model = settings.vertex_model
        self.capacity = settings.vertex_slots
        self.preempts = False
        self._client: VertexClient | None = None
        self._running = 0

    async def start(self) -> None:
        """Find Google credentials and create the client.

        Raises:
            UserError: No credentials were found, they cannot be read or used, or no project is set.
        """
        self._client = VertexClient(self._settings, *await _credentials(self._settings))

    def resolve(self, model: str) -> str:  # noqa: ARG002 - it may name a self-hosted model
        """Return the configured model. The requested name is ignored."""
        return self.model

    async def generate(self, job: Job) -> AsyncGenerator[EngineStep | GenerationResult, None]:
        """Yield the steps of the answer, then its result. If the caller stops early, the connection is closed."""
        if self._client is None:
            raise EngineError("internal", "the engine was not started", retryable=False)
        body = request_body(
            job.messages,
            job.sampling,
            thinking_tokens=self._settings.vertex_thinking_tokens,
            max_output_tokens=self._settings.vertex_max_output_tokens,
        )
        parser = GenerateContentParser(sum(len(message.content) for message in job.messages))
        self._running += 1
        try:
            async with contextlib.aclosing(_responses(self._client, job, body)) as responses:
                async for data in responses:
                    step = parser.read(data)
                    if step is not None:
                        yield step
            yield parser.end()
        except _CLIENT_ERRORS as error:
            raise _engine_error(error) from None
        finally:
            self._running -= 1

    def stats(self) -> EngineStats:
        return EngineStats(running=self._running)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()


async def _responses(client: VertexClient, job: Job, body: dict[str, Any]) -> AsyncGenerator[str, None]:
    tries, received = 0, False
    while True:
        tries += 1
        try:
            async with contextlib.aclosing(client.stream(job.model, body)) as responses:
                async for data in responses:
                    received = True
                    yield data
        except errors.APIError as error:
            headers = getattr(error.response, "headers", None)
            wait = retry_wait_us(tries, headers, error.details, steady_us(), job.expires_us)
            if received or wait is None or not status_meaning(error.code).retry_same_server:
                raise
            await asyncio.sleep(wait / 1e6)
        else:
            return


async def _credentials(settings: VertexSettings) -> tuple[Any, str]:
    if settings.emulated:
        return Credentials(token="emulated"), settings.vertex_project or EMULATED_PROJECT  # type: ignore[no-untyped-call] # noqa: S106
    try:
        async with asyncio.timeout(SIGN_IN_TIMEOUT_S):
            found, project = await asyncio.to_thread(google.auth.default, scopes=[SCOPE])
    except (DefaultCredentialsError, TimeoutError):
        raise UserError(f"no Google credentials: {_CREDENTIALS_HELP}") from None
    except OSError as error:
        raise UserError(
            f"the Google credentials in {error.filename} cannot be read ({error.strerror}):"
            " GOOGLE_APPLICATION_CREDENTIALS must name a file that this process's user may read; with Docker Compose,"
            " that is user 10001"
        ) from None
    except _KEY_FILE_ERRORS as error:
        raise UserError(
            f"the Google credentials cannot be used ({type(error).__name__}): check the file that"
            " GOOGLE_APPLICATION_CREDENTIALS names, or run `gcloud auth application-default login`"
        ) from None
    project = settings.vertex_project or project
    if not project:
        raise UserError("the Google credentials name no project: set RAILBUS_VERTEX_PROJECT")
    return found, project


def _engine_error(error: Exception) -> EngineError:
    match error:
        case errors.APIError():
            return status_error(error.code or 500)
        # On Google Cloud, the credentials wrap the error of the metadata server.
        case TransportError() | GoogleAuthError(__cause__=TransportError()) | GoogleAuthError(retryable=True):
            return EngineError("unavailable", "Google's sign-in server cannot be reached", retryable=True)
        case GoogleAuthError():
            return EngineError("auth", "Google refused the credentials: sign in again", retryable=False)
        case aiohttp.ClientConnectorError() | TimeoutError():
            return EngineError("unavailable", "Vertex AI cannot be reached", retryable=True)
        case _:
            return EngineError("unavailable", "Vertex AI closed the connection", retryable=True)
