"""Which bytes a client reads. Pure."""

from dataclasses import dataclass
from typing import Literal

from schemas.books import Transport
from services.edge.body import OnRestart
from services.edge.chat import ChatStream
from services.edge.completion import Completion
from services.edge.opstream import OpEvents, OpFrames
from services.edge.session import Encoder, Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """How a client wants an answer.

    Attributes:
        kind: OpenAI's chunks, OpenAI's completion in one piece, or ops as server-sent events or websocket frames.
        include_usage: Chunks end with the token counts.
        on_restart: What chunks do when an answer starts anew after some of it was sent.
    """

    kind: Literal["chunks", "completion", "op_events", "op_frames"]
    include_usage: bool = False
    on_restart: OnRestart = "error"

    @property
    def transport(self) -> Transport:
        """How the client is connected."""
        match self.kind:
            case "chunks" | "op_events":
                return "sse"
            case "completion":
                return "http"
            case "op_frames":
                return "websocket"

    @property
    def until_closed(self) -> bool:
        """Whether the client hears of the request's close; else its stream ends with the answer."""
        return self.kind in {"op_events", "op_frames"}

    def encoder(self, session: Session, model: str) -> Encoder:
        """Make the encoder for one stream; ``model`` is the name that was asked for."""
        match self.kind:
            case "chunks":
                return ChatStream(session, model, include_usage=self.include_usage, on_restart=self.on_restart)
            case "completion":
                return Completion(session, model)
            case "op_events":
                return OpEvents()
            case "op_frames":
                return OpFrames(session)


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """Who asks, and how the answer is wanted.

    Attributes:
        tenant: Who pays.
        encoding: What it reads.
    """

    tenant: str
    encoding: Encoding
