"""Errors for records that cannot be read.

``SkippedEvent`` means that a newer version wrote the record. ``MalformedEvent`` means an error of the writer.
"""


class UnreadableEvent(Exception):
    pass


class SkippedEvent(UnreadableEvent):
    """A newer version of Railbus wrote the record. Most readers skip it."""


class UnknownKind(SkippedEvent):
    """The kind header names no event that this version knows."""


class NewerVersion(SkippedEvent):
    """The version header is higher than the highest version that this reader knows."""


class MalformedEvent(UnreadableEvent):
    """The record does not have the format of its kind. The message names the field and the fault."""
