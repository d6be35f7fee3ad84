"""The project's images, built by buildah from their Dockerfiles, and containers of them, without Docker or a registry.

The base image is made by debootstrap, because not every machine can pull the real one. It has the real image's name
and Debian release, but Debian's own Python. All other steps are those of the Dockerfile.
"""

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.processes import ROOT, STOP_TIMEOUT_S, die_with_parent

PROGRAMS: Final = ("buildah", "debootstrap", "unshare", "chroot", "setpriv")
STORAGE: Final = ROOT / ".railbus" / "images"
BUILD_LIMIT_S: Final = 1_800

PACKAGES: Final = "python3,python3-venv,ca-certificates"
"""Packages that the real base image has, but not Debian's smallest system."""

DOCKER_TMPFS: Final = ("nosuid", "nodev", "noexec")
"""The options with which Docker mounts a tmpfs. With the option ``exec``, ``noexec`` is left out."""

ENTER: Final = """
set -e
mount --bind "$0" "$0"
for each in dev proc; do mount --rbind "/$each" "$0/$each"; done
mount -t tmpfs -o "$1" tmpfs "$0/tmp"
shift
while [ "$1" != -- ]; do
  if [ -d "$1" ]; then mkdir -p "$0$2"; else mkdir -p "$(dirname "$0$2")"; touch "$0$2"; fi
  mount --bind "$1" "$0$2"; shift 2
done
shift
mount -o remount,bind,ro "$0"
exec chroot "$0" "$@"
"""
"""A shell script for its own mount namespace: mount the image read-only, its volumes and a tmpfs, and run a command."""


def require_image_tools() -> None:
    """Skip the test if images cannot be built on this machine, and say what is missing."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"images are built as root with {', '.join(missing or PROGRAMS)} (Debian: make tools)")
    release = Path("/etc/os-release").read_text(encoding="utf-8")
    if "ID=debian" not in release.splitlines():
        pytest.skip("the base image is made with Debian's own package sources")


class ImageStore:
    """A folder with images and the file systems of containers."""

    def __init__(self, folder: Path = STORAGE) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._buildah = ["buildah", "--root", str(folder / "root"), "--runroot", str(folder / "run")]

    def buildah(self, *arguments: str) -> str:
        """Run buildah, and return what it prints."""
        done = subprocess.run(
            [*self._buildah, *arguments], cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=BUILD_LIMIT_S, check=False, preexec_fn=die_with_parent,
        )  # fmt: skip
        assert done.returncode == 0, f"buildah {shlex.join(arguments)}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
        return done.stdout.strip()

    def remove_containers(self) -> None:
        """Remove the containers that a killed run has left behind."""
        self.buildah("rm", "--all")

    def has(self, image: str) -> bool:
        return image in self.buildah("images", "--format", "{{.Name}}:{{.Tag}}").splitlines()

    def build(self, image: str, build: Mapping[str, Any]) -> str:
        """Build an image from a ``build`` section of the compose file, and return the image's full name."""
        dockerfile = ROOT / build["context"] / build["dockerfile"]
        for base in set(re.findall(r"^FROM (\S+)", dockerfile.read_text(encoding="utf-8"), re.MULTILINE)):
            if not self.has(name := f"docker.io/library/{base}"):
                self._make_base(name)
        arguments = [part for name, value in build["args"].items() for part in ("--build-arg", f"{name}={value}")]
        # These files say how this machine reaches its package registries.
        mounts = [path for path in ("/etc/ssl/certs", "/etc/pip.conf") if Path(path).exists()]
        name = f"localhost/{image}"
        self.buildah(
            "bud", "--quiet", "--layers", "--pull-never", "--isolation", "chroot", "--tag", name, *arguments,
            *(part for path in mounts for part in ("--volume", f"{path}:{path}:ro")),
            "--file", str(dockerfile), "--ignorefile", f"{dockerfile}.dockerignore", str(ROOT / build["context"]),
        )  # fmt: skip
        return name

    def configuration(self, image: str) -> dict[str, Any]:
        """Return the image's own configuration: its variables, user, working directory and command."""
        found: dict[str, Any] = json.loads(self.buildah("inspect", "--type", "image", image))["OCIv1"]["config"]
        return found

    @contextlib.contextmanager
    def mounted(self, image: str) -> Iterator[Path]:
        """Yield the root folder of a new container of the image. Remove the container after the ``with`` block."""
        container = self.buildah("from", "--pull-never", image)
        try:
            yield Path(self.buildah("mount", container))
        finally:
            self.buildah("rm", container)

    def _make_base(self, name: str) -> None:
        release = name.rpartition("-")[2]
        sources = "".join(path.read_text() for path in Path("/etc/apt").glob("sources.list*/debian.sources"))
        mirrors = re.findall(r"^(?:URIs:|deb) +(\S+)", sources, re.MULTILINE)
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            made = subprocess.run(
                ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", release, folder, *mirrors[:1]],
                capture_output=True, text=True, timeout=BUILD_LIMIT_S, check=False, preexec_fn=die_with_parent,
            )  # fmt: skip
            assert made.returncode == 0, made.stdout[-3000:]
            Path(folder, "usr", "local", "bin", "python").symlink_to("/usr/bin/python3")
            container = self.buildah("from", "scratch")
            self.buildah("add", "--quiet", container, folder, "/")
            self.buildah(
                "config", "--env", "PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin", container
            )
            self.buildah("commit", "--quiet", "--rm", container, name)


class Container:
    """Runs a service of the compose file in its image, without Docker.

    The image is read-only. The user, tmpfs, volumes and variables are those that compose would set.
    """

    def __init__(
        self, root: Path, configuration: Mapping[str, Any], service: Mapping[str, Any], env: Mapping[str, str],
        volumes: Sequence[tuple[Path, str]] = (),
    ) -> None:  # fmt: skip
        (tmpfs,) = service["tmpfs"]
        target, _, options = tmpfs.partition(":")
        assert target == "/tmp"
        assert service["read_only"] is True
        chosen = options.split(",")
        options = ",".join(
            [*(each for each in chosen if each != "exec"), *DOCKER_TMPFS[: 2 if "exec" in chosen else 3]]
        )
        user, _, group = service["user"].partition(":")
        assert service["user"] == configuration["User"]
        variables = {**dict(each.split("=", 1) for each in configuration["Env"]), **env}
        self._command = list(service["command"])
        self._enter = [
            "unshare", "--mount", "--propagation", "private", "sh", "-c", ENTER, str(root), options,
            *(part for source, inside in volumes for part in (str(source), inside)), "--",
            "setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", "--bounding-set=-all", "--no-new-privs",
            "env", "--ignore-environment", f"--chdir={configuration['WorkingDir']}",
            *(f"{name}={value}" for name, value in variables.items()),
        ]  # fmt: skip
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            [*self._enter, *self._command], stdin=subprocess.DEVNULL, stdout=self._output, stderr=self._output,
            preexec_fn=die_with_parent,
        )  # fmt: skip

    def run(self, *command: str) -> "subprocess.CompletedProcess[str]":
        """Run ``command`` with the container's image and rights, wait until it ends, and return its result."""
        return subprocess.run(
            [*self._enter, *command], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
            check=False, preexec_fn=die_with_parent,
        )  # fmt: skip

    @property
    def status(self) -> int | None:
        assert self._process is not None
        return self._process.poll()

    def stop(self) -> int:
        """Stop the service with SIGTERM, as compose does, and return its exit status."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(STOP_TIMEOUT_S * 2)

    def kill(self) -> None:
        """Kill the service, and discard its output."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._output.close()

    def said(self) -> str:
        """Return the last 4,000 bytes of the service's output."""
        self._output.seek(0)
        return self._output.read()[-4000:].decode(errors="replace")
