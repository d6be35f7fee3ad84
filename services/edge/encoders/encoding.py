"""Choose the format in which a client gets its answer."""

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
        kind: ``chunks`` is OpenAI's streamed format, and ``completion`` is OpenAI's format for a whole answer.
            ``op_events`` means ops as server-sent events, and ``op_frames`` means ops as websocket frames.
        include_usage: Whether a stream of chunks ends with the token counts.
        on_restart: What a stream of chunks does if another attempt takes over after text was sent.
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
        """Whether the stream goes on until the op ``close``.

        If False, the stream ends with the first of these ops: ``finish``, ``withdraw``, ``refuse``, ``close``.
        """
        return self.kind in {"op_events", "op_frames"}

    def encoder(self, session: DeliverySession, model: str) -> Encoder:
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
    tenant: str
    encoding: Encoding
