"""Run an object store that speaks S3 (moto's server) as a separate process."""

import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.processes import bare_environment, die_with_parent, free_port
from tests.support.waiting import wait_until

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test-secret", "AWS_EC2_METADATA_DISABLED": "true"}
BUCKET = "archive"


@contextmanager
def s3_server() -> Iterator[str]:
    """Run an S3 server within the ``with`` block. Yield the URI of a folder in its bucket.

    To use the server, set the environment variables of ``CREDENTIALS``.
    """
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-c", "from moto.server import main; main()", "-H", "127.0.0.1", "-p", str(port)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env=bare_environment(), preexec_fn=die_with_parent,
    )  # fmt: skip
    try:
        wait_until(lambda: _makes_bucket(port) or process.poll() is not None, "moto serves", within_s=90, every_s=0.2)
        assert process.poll() is None
        yield f"s3://{BUCKET}/one?scheme=http&endpoint_override=127.0.0.1:{port}&region=us-east-1"
    finally:
        process.kill()
        process.wait()


def _makes_bucket(port: int) -> bool:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/{BUCKET}", method="PUT")
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return bool(response.status == 200)
    except urllib.error.HTTPError as error:
        return error.code == 409  # it is there
    except OSError:
        return False
