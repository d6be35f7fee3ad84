"""A test lab of routers on a real log. The test plays apps, workers and edges."""

from schemas.base import Event
from schemas.topics import STREAMS
from services.stream import Screen
from tests.support.lab import Lab


class RouterLab(Lab):
    service = "services.router"
    pause_s = 0.1
    settings = {"RAILBUS_TOTAL_MAX_MS": "20000"}  # noqa: RUF012

    def endings(self) -> dict[str, str]:
        """Return the outcome of each request's effective ``Closed``, by request id."""
        screens: dict[str, Screen] = {}
        for record in self.log:
            if record.topic == STREAMS.name and isinstance(record.event, Event):
                screen = screens.setdefault(record.event.request_id, Screen(record.event.request_id))
                screen.feed(record.event)  # type: ignore[arg-type]
        return {request_id: screen.closed.outcome for request_id, screen in screens.items() if screen.closed}
