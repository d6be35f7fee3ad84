class BusError(Exception):
    pass


class ProducerClosed(BusError):
    """The producer is not running. Start it before posting, and do not post after stopping it."""


class NotAcknowledged(BusError):
    """The producer stopped before the broker acknowledged the event. The event may be on the log or not."""


class EventRejected(BusError):
    """The broker refused the event and would refuse it again, for example because it is too large."""
