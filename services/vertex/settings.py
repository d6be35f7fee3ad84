"""Which Vertex AI, and how it is used."""

from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

from services.runtime.addresses import is_loopback
from services.runtime.errors import UserError


def _setting(default: Any, help_text: str, **metadata: Any) -> Any:
    return field(default=default, metadata={"help": help_text, **metadata})


@dataclass(frozen=True, slots=True, kw_only=True)
class VertexSettings:
    """Read with ``services.runtime.settings.load``.

    Attributes:
        vertex_project: Google Cloud project; None takes the one of the Application Default Credentials.
        vertex_location: Region, or ``global``.
        vertex_model: The model that answers, whatever model the request asked the self-hosted engine for.
        vertex_thinking_tokens: Tokens a thinking model may think before it answers; -1 leaves it to the model. Thinking
            delays the first token.
        vertex_url: Another address than Google's: a private endpoint, or the emulator. Loopback gets no credentials.
        vertex_instance: Static membership: a restart within the session timeout waits for no rebalance.
        vertex_slots: Most answers at once.
        vertex_queue: Accepted requests that may wait for a slot.
        input_gate: ``off`` says on the log that text may be shown before any verdict.
        output_check: ``off`` says on the log that no safety service checks the answers.
    """

    vertex_project: str | None = _setting(None, "Google Cloud project; default: of the credentials")
    vertex_location: str = _setting("global", "region, such as europe-west4, or global")
    vertex_model: str = _setting("gemini-2.5-flash", "the model that answers")
    vertex_thinking_tokens: int = _setting(0, "tokens a model may think first, -1 = its own choice", ge=-1, le=65_536)
    vertex_url: str | None = _setting(None, "another address than Google's")
    vertex_instance: str | None = _setting(None, "a name no other Vertex worker has")
    vertex_slots: int = _setting(64, "most answers at once", ge=1, le=10_000)
    vertex_queue: int = _setting(256, "accepted requests that may wait for a slot", ge=1, le=100_000)
    input_gate: Literal["hold", "off"] = _setting("off", "whether text waits for a verdict")
    output_check: Literal["on", "off"] = _setting("off", "whether a safety service checks")

    def __post_init__(self) -> None:
        """Refuses an address that is none.

        Raises:
            UserError: Naming the variable and the remedy.
        """
        if self.vertex_url is not None:
            parts = urlsplit(self.vertex_url)
            if parts.scheme not in {"http", "https"} or not parts.hostname:
                raise UserError(f"RAILBUS_VERTEX_URL={self.vertex_url!r}: must be an address such as https://host")
            if parts.scheme == "http" and not self.emulated:
                raise UserError(f"RAILBUS_VERTEX_URL={self.vertex_url!r}: prompts and tokens leave by https only")

    @property
    def emulated(self) -> bool:
        """Whether the server is on this machine, so that no credentials may be sent, and none are needed."""
        if self.vertex_url is None:
            return False
        return is_loopback(urlsplit(self.vertex_url).hostname or "")
