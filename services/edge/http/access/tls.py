"""TLS on the edge's port."""

import ssl
from pathlib import Path

from services.runtime.errors import UserError


def tls_context(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Return the TLS context of the server, or None if no certificate is configured.

    Args:
        certificate: PEM file with the certificate and the intermediate certificates.
        key: PEM file with the private key; None if the file ``certificate`` also contains the key.

    Raises:
        UserError: A file cannot be used, or a key is set without a certificate.
    """
    if certificate is None:
        if key is not None:
            raise UserError("RAILBUS_EDGE_TLS_KEY needs RAILBUS_EDGE_TLS_CERT: the certificate of this key")
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)  # TLS 1.2 and newer
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except OSError as error:  # includes ``ssl.SSLError``
        files = f"RAILBUS_EDGE_TLS_CERT={certificate}" + ("" if key is None else f", RAILBUS_EDGE_TLS_KEY={key}")
        raise UserError(
            f"{files}: {error.strerror or error}; give PEM files of a certificate and of its key without a password"
        ) from None
    return context


def _no_password() -> str:
    return ""  # without a password function, OpenSSL would ask for a password on the terminal
