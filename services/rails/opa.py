"""An OPA server's answer to the admission question, checked like the one in process."""

from dataclasses import asdict
from typing import Final

import aiohttp
import orjson

from services.policy import ADMISSION, Admission, Admittance, RulingError, read_admission
from services.rails.rail import RailBroke
from services.runtime import UserError

MAX_ANSWER_BYTES: Final = 65_536
PATH: Final = "/v1/" + ADMISSION.replace(".", "/")


class OpaServer:
    """Asks over HTTP. It is bounded by the rails' deadline, and by no retry: a slow server is a rail that timed out."""

    def __init__(self, url: str) -> None:
        if not url.startswith(("http://", "https://")):
            raise UserError(f"RAILBUS_OPA_URL={url[:200]!r}: must be http://HOST:PORT")
        self._url = url.rstrip("/") + PATH
        self._session: aiohttp.ClientSession | None = None

    async def admit(self, asked: Admittance) -> Admission:
        """What the server says.

        Raises:
            RailBroke: It cannot be asked, or its answer is not of the documented form.
        """
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60))
        try:
            async with self._session.post(self._url, json={"input": asdict(asked)}) as response:
                if response.status != 200:
                    raise RailBroke(f"OPA answered {response.status}")
                body = await response.content.read(MAX_ANSWER_BYTES + 1)
                while len(body) <= MAX_ANSWER_BYTES and (more := await response.content.read(MAX_ANSWER_BYTES)):
                    body += more
        except (aiohttp.ClientError, OSError) as error:
            raise RailBroke(f"OPA cannot be asked: {type(error).__name__}") from None
        if len(body) > MAX_ANSWER_BYTES:
            raise RailBroke(f"OPA's answer has more than {MAX_ANSWER_BYTES} bytes")
        try:
            answer = orjson.loads(body)
        except orjson.JSONDecodeError:
            raise RailBroke("OPA's answer is not JSON") from None
        if not isinstance(answer, dict):
            raise RailBroke("OPA's answer is no object")
        try:
            return read_admission(answer.get("result"))
        except RulingError as error:
            raise RailBroke(f"OPA: {error}") from None

    async def close(self) -> None:
        """Close its connections."""
        if self._session is not None:
            await self._session.close()
