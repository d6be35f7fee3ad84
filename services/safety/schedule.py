"""When a check looks: at absolute offsets of the text, so that neither chunks nor load move the windows. Pure."""

from services.policy.document import Windows


def next_offset(position: int, windows: Windows) -> int:
    """The first offset after ``position``: first, 2 x first, 4 x first ... up to the stride, then its multiples."""
    if position >= windows.stride_chars:
        return (position // windows.stride_chars + 1) * windows.stride_chars
    offset = windows.first_chars
    while offset <= position:
        offset *= 2
    return min(offset, windows.stride_chars)
