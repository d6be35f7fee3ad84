"""Certificates for tests, made by openssl."""

import subprocess


def certificate(folder, name):
    """Make a key and a self-signed certificate for 127.0.0.1, and return the paths of both files."""
    key, cert = folder / f"{name}.key", folder / f"{name}.crt"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return key, cert
