"""A process that follows another ends when that one does, however that is learnt."""

import os
import subprocess
import sys

import pytest

from services.generator.engines.vllm_owner import OWNER

FOLLOW = "import sys, time; from services.generator.engines import vllm_owner as it; {before}; it.follow(); print(1); "
ASLEEP = FOLLOW + "sys.stdout.flush(); time.sleep(60)"
WITHOUT_THE_CALL = (
    "import os; it.LOOK_S = 0.01; "
    "os.pidfd_open = lambda pid: (_ for _ in ()).throw(OSError(38, 'Function not implemented'))"
)


def following(owner, program):
    env = {name: value for name, value in os.environ.items() if name != OWNER} | ({OWNER: str(owner)} if owner else {})
    return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=env)


@pytest.fixture
def owner():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize("before", ["pass", WITHOUT_THE_CALL], ids=["told by the kernel", "looking"])
def test_it_ends_with_its_owner(owner, before):
    with following(owner.pid, ASLEEP.format(before=before)) as process:
        assert process.stdout.readline() == b"1\n"
        assert process.poll() is None
        owner.kill()
        owner.wait()
        assert process.wait(20) == 1


def test_an_owner_that_is_gone_already_ends_it_too(owner):
    owner.kill()
    owner.wait()
    with following(owner.pid, ASLEEP.format(before="pass")) as process:
        assert process.wait(20) == 1


def test_without_an_owner_it_lives_as_it_likes():
    with following(None, FOLLOW.format(before="pass") + "time.sleep(0.2); sys.exit(7)") as process:
        assert process.wait(20) == 7
