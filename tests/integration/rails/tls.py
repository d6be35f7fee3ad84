"""A TLS proxy that does not answer when a client closes its TLS session. The client waits for the answer."""

import socket
import ssl
import threading
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_NAME = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])


class SilentTlsProxy:
    """A TLS server that passes bytes to and from another port, but never answers when a client closes the session."""

    def __init__(self, folder, port):
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(_certificate(folder))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._behind = port
        self._sockets = []
        self.port = self._listener.getsockname()[1]
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def close(self):
        self._listener.shutdown(socket.SHUT_RDWR)  # closing alone does not wake who accepts
        self._accepting.join(10)
        for each in (self._listener, *self._sockets):
            each.close()

    def _accept(self):
        while True:
            try:
                raw, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(raw)
            try:
                client = self._context.wrap_socket(raw, server_side=True, suppress_ragged_eofs=True)
                self._sockets.append(client)
                server = socket.create_connection(("127.0.0.1", self._behind))
            except OSError:  # whoever came went away, or nobody is behind: the next one may fare better
                continue
            self._sockets.append(server)
            for pair in ((client, server), (server, client)):
                threading.Thread(target=_pass_on, args=pair, daemon=True).start()


def _pass_on(source, target):
    try:
        while body := source.recv(65_536):
            target.sendall(body)
    except OSError:
        return


def _certificate(folder):
    key = ec.generate_private_key(ec.SECP256R1())
    begin = datetime(2020, 1, 1, tzinfo=UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(_NAME).issuer_name(_NAME).public_key(key.public_key()).serial_number(1)
        .not_valid_before(begin).not_valid_after(begin + timedelta(days=36_500))
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    path = folder / "tls.pem"
    plain = serialization.NoEncryption()
    body = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    path.write_bytes(body + built.public_bytes(serialization.Encoding.PEM))
    return path
