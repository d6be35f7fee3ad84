"""The format in which a client wants its answer. Pure."""

from dataclasses import dataclass
from typing import Literal

from schemas.side_events import Transport
from services.edge.delivery.session import DeliverySession, Encoder
from services.edge.encoders.chat_chunks import ChatChunkEncoder, OnRestart
from services.edge.encoders.completion import CompletionEncoder
from services.edge.encoders.sse import SseEncoder
from services.edge.encoders.websocket import WebSocketEncoder


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """The format of an answer.

    Attributes:
        kind: OpenAI's chunks, OpenAI's whole completion, or ops as server-sent events or websocket frames.
        include_usage: Whether chunks end with the token counts.
        on_restart: What chunks do when an answer restarts after text was sent.
    """

    kind: Literal["chunks", "completion", "op_events", "op_frames"]
    include_usage: bool = False
    on_restart: OnRestart = "error"

    @property
    def transport(self) -> Transport:
        match self.kind:
            case "chunks" | "op_events":
                return "sse"
            case "completion":
                return "http"
            case "op_frames":
                return "websocket"

    @property
    def until_closed(self) -> bool:
        """Whether the stream includes the ``close`` op; otherwise it ends with the answer."""
        return self.kind in {"op_events", "op_frames"}

    def encoder(self, session: DeliverySession, model: str) -> Encoder:
        """Create the encoder of one stream; ``model`` is the name in the request."""
        match self.kind:
            case "chunks":
                return ChatChunkEncoder(session, model, include_usage=self.include_usage, on_restart=self.on_restart)
            case "completion":
                return CompletionEncoder(session, model)
            case "op_events":
                return SseEncoder()
            case "op_frames":
                return WebSocketEncoder(session)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientContext:
    """The tenant that a client belongs to, and the format it reads."""

    tenant: str
    encoding: Encoding
