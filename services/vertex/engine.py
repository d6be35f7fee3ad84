"""The engine that answers in the cloud, through Google's own client."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any, Final

import aiohttp
import google.auth
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError
from google.genai import errors
from google.oauth2.credentials import Credentials

from services.runtime.clock import now_us
from services.runtime.errors import UserError
from services.vertex.google import Google
from services.vertex.mapping import Answer, body_of
from services.vertex.refusals import meaning, refusal, wait_us
from services.vertex.settings import VertexSettings
from services.worker.engine import Done, EngineError, EngineStats, Job, Step

SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"

SIGN_IN_S: Final = 20.0
"""Longest search for credentials; on a machine of Google's it asks the metadata server."""

EMULATED_PROJECT: Final = "emulated"

_HELP: Final = (
    "run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS to the key file of a service"
    " account; without an account, use the emulator: `railbus up --vertex-emulator`"
)


_FAULTS: Final = (errors.APIError, aiohttp.ClientError, GoogleAuthError, OSError)


class VertexEngine:
    """One model of Vertex AI; see ``services.worker.engine.Engine``."""

    name = "vertex"

    def __init__(self, settings: VertexSettings) -> None:
        self._settings = settings
        self.model = settings.vertex_model
        self.capacity = settings.vertex_slots
        self._google: Google | None = None
        self._running = 0

    async def start(self) -> None:
        """Finds credentials and makes the client; nothing is asked of the server.

        Raises:
            UserError: There are no credentials, or no project.
        """
        self._google = Google(self._settings, *await _credentials(self._settings))

    def resolve(self, model: str) -> str:  # noqa: ARG002 - the name of a self-hosted model means nothing here
        """Every request is answered by the one model."""
        return self.model

    async def generate(self, job: Job) -> AsyncGenerator[Step | Done, None]:
        """As the protocol says; whatever ends it early closes the connection, which ends the generation."""
        if self._google is None:
            raise EngineError("internal", "the engine was not started", retryable=False)
        body = body_of(job.messages, job.sampling, self._settings.vertex_thinking_tokens)
        answer = Answer()
        self._running += 1
        try:
            async with contextlib.aclosing(_frames(self._google, job, body)) as frames:
                async for frame in frames:
                    step = answer.read(frame)
                    if step is not None:
                        yield step
            yield answer.end()
        except _FAULTS as error:
            raise _translated(error) from None
        finally:
            self._running -= 1

    def stats(self) -> EngineStats:
        """How busy it is."""
        return EngineStats(running=self._running)

    async def close(self) -> None:
        """Closes the connections."""
        if self._google is not None:
            await self._google.close()


async def _frames(google: Google, job: Job, body: dict[str, Any]) -> AsyncGenerator[str, None]:
    """The answer's frames; asks again while the server is busy, has said nothing, and there is time."""
    tries, heard = 0, False
    while True:
        tries += 1
        try:
            async with contextlib.aclosing(google.stream(job.model, body)) as frames:
                async for frame in frames:
                    heard = True
                    yield frame
        except errors.APIError as error:
            headers = getattr(error.response, "headers", None)
            wait = wait_us(tries, headers, error.details, now_us(), job.expires_us)
            if heard or wait is None or not meaning(error.code).again:
                raise
            await asyncio.sleep(wait / 1e6)
        else:
            return


async def _credentials(settings: VertexSettings) -> tuple[Any, str]:
    if settings.emulated:
        return Credentials(token="emulated"), settings.vertex_project or EMULATED_PROJECT  # type: ignore[no-untyped-call] # noqa: S106
    try:
        async with asyncio.timeout(SIGN_IN_S):
            found, project = await asyncio.to_thread(google.auth.default, scopes=[SCOPE])
    except (DefaultCredentialsError, TimeoutError):
        raise UserError(f"no Google credentials: {_HELP}") from None
    project = settings.vertex_project or project
    if not project:
        raise UserError("the Google credentials name no project: set RAILBUS_VERTEX_PROJECT")
    return found, project


def _translated(error: Exception) -> EngineError:
    """The client's errors in our words."""
    match error:
        case errors.APIError():
            return refusal(error.code or 500)
        case GoogleAuthError():
            return EngineError("auth", "Google does not take the credentials: sign in again", retryable=False)
        case aiohttp.ClientConnectorError() | TimeoutError():
            return EngineError("unavailable", "Vertex AI cannot be reached", retryable=True)
        case _:
            return EngineError("unavailable", "Vertex AI broke the connection off", retryable=True)
