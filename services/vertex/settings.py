"""Settings of the Vertex AI worker."""

from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from services.runtime.errors import UserError
from services.runtime.settings import is_loopback, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class VertexSettings:
    """The Vertex AI worker, which answers attempts 2 and later.

    Attributes:
        vertex_project: Google Cloud project. Not set: the project of the Application Default Credentials.
        vertex_location: Region, such as ``europe-west4``, or ``global``.
        vertex_model: The model that answers, whatever model the request names.
        vertex_thinking_tokens: Most tokens that a thinking model may think before it answers. -1 leaves it to the
            model. Thinking delays the first token.
        vertex_url: Another address than Google's: a private endpoint, or the emulator. A loopback address gets no
            credentials.
        vertex_instance: A name that no other Vertex worker has. A restart under the same name within the session
            timeout causes no rebalance.
        vertex_slots: Most answers at once.
        vertex_queue: Accepted requests that may wait for a slot. When so many wait, the worker reads no more requests.
        vertex_drain_ms: How long running answers may take to finish when the worker is asked to stop.
        input_gate: As for the generator.
        output_check: As for the generator.
    """

    vertex_project: str | None = setting(None, "Google Cloud project; default: the credentials' project")
    vertex_location: str = setting("global", "region, such as europe-west4, or global")
    vertex_model: str = setting("gemini-2.5-flash", "the model that answers")
    vertex_thinking_tokens: int = setting(0, "token budget for thinking, -1 = the model's choice", ge=-1, le=65_536)
    vertex_url: str | None = setting(None, "address to use instead of Google's")
    vertex_instance: str | None = setting(None, "static member id, unique among Vertex workers")
    vertex_slots: int = setting(64, "maximum number of concurrent answers", ge=1, le=10_000)
    vertex_queue: int = setting(256, "accepted requests that may wait for a slot", ge=1, le=100_000)
    vertex_drain_ms: int = setting(20_000, "how long answers may take to finish when it stops", ge=0, le=20_000)
    input_gate: Literal["hold", "off"] = setting("hold", "whether text waits for a verdict")
    output_check: Literal["on", "off"] = setting("on", "whether a safety service checks")

    def __post_init__(self) -> None:
        """Refuse an unsafe or malformed address.

        Raises:
            UserError: The message names the variable and the remedy.
        """
        if self.vertex_url is not None:
            parts = urlsplit(self.vertex_url)
            if parts.scheme not in {"http", "https"} or not parts.hostname:
                raise UserError(f"RAILBUS_VERTEX_URL={self.vertex_url!r}: it must be an address such as https://host")
            if parts.scheme == "http" and not self.emulated:
                raise UserError(
                    f"RAILBUS_VERTEX_URL={self.vertex_url!r}: use https, so that prompts and tokens are encrypted"
                )

    @property
    def emulated(self) -> bool:
        """Whether the server is on this machine: then it needs no credentials and must not get any."""
        if self.vertex_url is None:
            return False
        return is_loopback(urlsplit(self.vertex_url).hostname or "")
