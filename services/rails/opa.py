from dataclasses import asdict
from typing import Final

import aiohttp
import orjson

from services.policy import ADMISSION, Admission, AdmissionRequest, RulingError, read_admission
from services.rails.rail import RailFailed
from services.runtime import UserError
from services.runtime.settings import is_http_url

MAX_ANSWER_BYTES: Final = 65_536
PATH: Final = "/v1/" + ADMISSION.replace(".", "/")


class OpaClient:
    """A client of an OPA server. It does not repeat a request that failed."""

    def __init__(self, url: str) -> None:
        if not is_http_url(url):
            shown = "(hidden)" if "@" in url or "?" in url else repr(url[:200])  # perhaps it contains a password
            raise UserError(f"RAILBUS_OPA_URL={shown}: must be http://HOST:PORT")
        self._url = url.rstrip("/") + PATH
        self._session: aiohttp.ClientSession | None = None

    async def admit(self, question: AdmissionRequest) -> Admission:
        """Ask the server whether a request may be answered.

        Raises:
            RailFailed: The server is unreachable, or its answer is invalid.
        """
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60))
        try:
            async with self._session.post(self._url, json={"input": asdict(question)}) as response:
                if response.status != 200:
                    raise RailFailed(f"OPA answered {response.status}")
                body = await response.content.read(MAX_ANSWER_BYTES + 1)
                while len(body) <= MAX_ANSWER_BYTES and (more := await response.content.read(MAX_ANSWER_BYTES)):
                    body += more
        except (aiohttp.ClientError, OSError) as error:
            raise RailFailed(f"OPA is unreachable: {type(error).__name__}") from None
        if len(body) > MAX_ANSWER_BYTES:
            raise RailFailed(f"OPA's answer has more than {MAX_ANSWER_BYTES} bytes")
        try:
            answer = orjson.loads(body)
        except orjson.JSONDecodeError:
            raise RailFailed("OPA's answer is not JSON") from None
        if not isinstance(answer, dict):
            raise RailFailed("OPA's answer is not a JSON object")
        try:
            return read_admission(answer.get("result"))
        except RulingError as error:
            raise RailFailed(f"OPA: {error}") from None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
