"""The errors for records that cannot be read.

UnreadableEvent
 |- SkippedEvent      written for a newer reader; it is counted and raises no alarm; the router keeps it in railbus.dead
 |   |- UnknownKind
 |   `- NewerVersion
 `- MalformedEvent    an error of the writer; the dead letter has topic, offset and field
"""


class UnreadableEvent(Exception):
    """A record that cannot be decoded to an event."""


class SkippedEvent(UnreadableEvent):
    """A record written for a newer reader."""


class UnknownKind(SkippedEvent):
    """The kind header names no event that this version knows."""


class NewerVersion(SkippedEvent):
    """The version header is higher than the highest version that this reader knows."""


class MalformedEvent(UnreadableEvent):
    """A record of a known kind that does not have this kind's format. The message names the field and the fault."""
