"""What a request handler may return.

A handler returns a response, a `DeferredResponse` that is set later, or None if the client expects no response.
"""

from collections.abc import Callable


class CloseConnection(Exception):
    """The connection must be closed, because Kafka's protocol has no response for this error."""


class DeferredResponse:
    __slots__ = ("_body", "_cancel", "_then", "done")

    def __init__(self, cancel: Callable[[], None] | None = None) -> None:
        self.done = False
        self._body = b""
        self._then: Callable[[bytes], None] | None = None
        self._cancel = cancel

    def set_result(self, body: bytes) -> None:
        """Set the response. This has no effect after an earlier ``set_result`` or ``cancel``."""
        if self.done:
            return
        self.done = True
        if self._then is not None:
            self._then(body)
        else:
            self._body = body

    def then(self, then: Callable[[bytes], None]) -> None:
        """Call the function `then` with the response as soon as it is set."""
        if self.done:
            then(self._body)
        else:
            self._then = then

    def cancel(self) -> None:
        if not self.done:
            self.done = True
            if self._cancel is not None:
                self._cancel()


ApiResponse = bytes | DeferredResponse | None
"""The body of a response, a body that is set later, or None if the client expects no response (Produce with acks=0)."""
