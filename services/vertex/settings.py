"""Settings of the Vertex AI worker."""

from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from services.runtime.errors import UserError
from services.runtime.settings import is_http_url, is_loopback, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class VertexSettings:
    """The settings of the Vertex AI worker.

    Attributes:
        vertex_project: Google Cloud project. If not set, the project of the Application Default Credentials is used.
        vertex_location: Google Cloud region, such as ``europe-west4``, or ``global``.
        vertex_model: Name of the model that answers. The model that a request names is ignored.
        vertex_thinking_tokens: Maximum number of tokens that a reasoning model may generate before its answer. -1 lets
            the model choose. These tokens delay the first token of the answer.
        vertex_max_output_tokens: Maximum length of an answer that the model accepts in a request. If a request's
            ``max_tokens`` is larger, this value is sent in its place. The default is the limit of Gemini 2.5.
        vertex_url: URL of a private endpoint or of the emulator. If not set, Google's URL is used. No credentials are
            sent to a loopback address.
        vertex_instance: A name that no other Vertex worker has. A restart under the same name within the consumer
            group's session timeout causes no rebalance.
        vertex_slots: Maximum number of answers generated at the same time.
        vertex_queue: Maximum number of accepted requests that wait for a slot. At this number, the worker reads no more
            requests.
        vertex_drain_ms: Maximum time that running answers may take to finish after the worker was told to stop.
        input_gate: ``hold`` means that no text is shown before the verdict of a rails service. Set ``off`` only where
            no rails service runs. ``off`` has no effect on edges and routers whose own setting is ``hold``.
        output_check: ``on`` means that a safety service checks the answers. Set ``off`` only where no safety service
            runs. ``off`` has no effect on edges and routers whose own setting is ``on``.
    """

    vertex_project: str | None = setting(None, "Google Cloud project; default: the credentials' project")
    vertex_location: str = setting("global", "Google Cloud region, such as europe-west4, or global")
    vertex_model: str = setting("gemini-2.5-flash", "name of the model that answers")
    vertex_thinking_tokens: int = setting(
        0, "maximum number of tokens for reasoning before the answer, -1 = the model chooses", ge=-1, le=65_536
    )
    vertex_max_output_tokens: int = setting(
        65_535, "maximum length of an answer, in tokens, that the model accepts in a request", ge=1, le=131_072
    )
    vertex_url: str | None = setting(None, "URL of a private endpoint or of the emulator, instead of Google's")
    vertex_instance: str | None = setting(
        None, "unique name of this Vertex worker, so that a quick restart causes no rebalance"
    )
    vertex_slots: int = setting(64, "maximum number of concurrent answers", ge=1, le=10_000)
    vertex_queue: int = setting(256, "maximum number of accepted requests that wait for a slot", ge=1, le=100_000)
    vertex_drain_ms: int = setting(20_000, "how long answers may take to finish when the worker stops", ge=0, le=20_000)
    input_gate: Literal["hold", "off"] = setting(
        "hold", "hold = no text is shown before a rails service's verdict, off = no rails service runs"
    )
    output_check: Literal["on", "off"] = setting("on", "whether a safety service checks answers")

    def __post_init__(self) -> None:
        if self.vertex_url is not None:
            if not is_http_url(self.vertex_url):
                raise UserError(f"RAILBUS_VERTEX_URL={self.vertex_url!r}: it must be an address such as https://host")
            if urlsplit(self.vertex_url).scheme == "http" and not self.emulated:
                raise UserError(
                    f"RAILBUS_VERTEX_URL={self.vertex_url!r}: use https, so that prompts and tokens are encrypted"
                )

    @property
    def emulated(self) -> bool:
        """Whether ``vertex_url`` is on this machine. If so, Google credentials are neither looked up nor sent."""
        if self.vertex_url is None:
            return False
        return is_loopback(urlsplit(self.vertex_url).hostname or "")
