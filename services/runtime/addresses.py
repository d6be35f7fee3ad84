"""Names and addresses of this machine."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Return whether the name or address, without a port, means this machine; an IPv6 address may be in brackets."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
