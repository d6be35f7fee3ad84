"""The supervisor over real processes: small Python programs that stand for services."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import AsyncExitStack

import pytest

from services.cli.fleet import Launch
from services.cli.restarts import RestartPolicy
from services.cli.supervisor import Supervisor
from services.runtime import UserError

SERVE = "import time, sys; print('ready here'); time.sleep(60)"
QUICK = RestartPolicy(first_s=0.05, longest_s=0.1, most=3, within_s=60)


def launch(name, code=SERVE, stage=0, **more):
    return Launch(name=name, stage=stage, command=(sys.executable, "-c", code), env={}, **more)


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def until(condition, within_s=20):
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - what is waited for happens in other processes
            await asyncio.sleep(0.01)


class Heard:
    def __init__(self):
        self.lines = []

    def __call__(self, line):
        self.lines.append(line)

    def has(self, text):
        return any(text in line for line in self.lines)


async def test_servers_start_before_the_rest_and_all_stop_in_reverse(tmp_path):
    log = tmp_path / "log"
    code = (
        "import signal, sys, time\n"
        f"log = open({str(log)!r}, 'a', buffering=1)\n"
        "def stop(*_):\n    log.write('-' + sys.argv[1] + '\\n'); sys.exit()\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "time.sleep(0.2)\n"
        "log.write('+' + sys.argv[1] + '\\n')\n"
        "print('ready')\n"
        "time.sleep(60)"
    )
    fleet = [
        Launch(name=name, stage=stage, command=(sys.executable, "-c", code, name), env={})
        for name, stage in (("a", 0), ("b", 1), ("c", 2))
    ]
    async with Supervisor(fleet, Heard()).running():
        first, *others = log.read_text().split()
        assert first == "+a"
        assert sorted(others) == ["+b", "+c"]
    assert log.read_text().split()[3:] == ["-c", "-b", "-a"]


async def test_each_stands_back_as_far_as_it_should_in_a_group_of_its_own_and_in_our_session():
    # In a session of its own it would be scheduled as if nobody were nice: Linux weighs sessions, then processes.
    here = os.getpriority(os.PRIO_PROCESS, 0)
    supervisor = Supervisor([launch("first"), launch("last", nice=7)], Heard())
    async with supervisor.running():
        found = {name: os.getpriority(os.PRIO_PROCESS, pid) - here for name, pid in supervisor.pids.items()}
        assert found == {"first": 0, "last": min(7, 19 - here)}
        for pid in supervisor.pids.values():
            assert os.getpgid(pid) == pid
            assert os.getsid(pid) == os.getsid(0)


async def test_a_killed_service_is_started_again_and_named():
    heard, started = Heard(), []
    supervisor = Supervisor([launch("worker"), launch("other")], heard, lambda: started.append(1), QUICK)
    async with supervisor.running():
        before = supervisor.pids
        os.kill(before["worker"], signal.SIGKILL)
        await until(lambda: supervisor.pids["worker"] != before["worker"])
        assert supervisor.pids["other"] == before["other"]
        assert heard.has("worker ended with signal 9; starting it again")
        assert len(started) == 3
        after = supervisor.pids
    assert not any(alive(pid) for pid in after.values())


async def test_what_the_operator_must_mend_ends_everything():
    bad = launch("sick", "import sys; sys.stderr.write('railbus sick: no weights: pip install them\\n'); sys.exit(2)")
    supervisor = Supervisor([launch("well"), bad], Heard(), policy=QUICK)
    with pytest.raises(UserError, match=r"^sick cannot run: no weights: pip install them$"):
        async with supervisor.running():
            raise AssertionError("it must not come to serve")
    assert not any(alive(pid) for pid in supervisor.pids.values())


async def test_a_mistake_found_later_ends_the_block_too():
    heard = Heard()
    code = "import sys, time; print('ready'); time.sleep(0.5); sys.exit(2)"
    with pytest.raises(UserError, match="late cannot run: ready"):
        async with Supervisor([launch("late", code)], heard).running():
            await asyncio.sleep(30)


async def test_it_gives_up_on_a_service_that_ends_again_and_again():
    heard = Heard()
    with pytest.raises(UserError, match=r"^flaky ended 3 times within 60 s, last with exit code 7: oh dear$"):
        async with Supervisor(
            [launch("flaky", "print('oh dear'); raise SystemExit(7)")], heard, policy=QUICK
        ).running():
            pass
    assert sum("flaky ended with exit code 7; starting" in line for line in heard.lines) == 2


async def test_a_service_that_never_serves_counts_as_ended():
    heard = Heard()
    with pytest.raises(UserError, match="mute ended 3 times"):
        async with Supervisor(
            [launch("mute", "import time; time.sleep(60)", ready_s=0.3)], heard, policy=QUICK
        ).running():
            pass
    assert heard.has("mute did not serve within 0 s")


async def test_a_program_that_is_not_there_is_named():
    missing = Launch(name="ghost", stage=0, command=("/nowhere/ghost",), env={})
    with pytest.raises(UserError, match="ghost cannot be started: /nowhere/ghost: No such file"):
        async with Supervisor([missing], Heard()).running():
            pass


async def test_errors_of_the_block_pass_through_and_everything_stops():
    supervisor = Supervisor([launch("a")], Heard())
    with pytest.raises(ValueError, match="mine"):
        async with supervisor.running():
            raise ValueError("mine")
    assert not alive(supervisor.pids["a"])


async def test_cancelling_the_block_stops_everything():
    supervisor = Supervisor([launch("a"), launch("b", stage=1)], Heard())

    async def serve():
        async with supervisor.running():
            await asyncio.Event().wait()

    task = asyncio.create_task(serve())
    await until(lambda: "b" in supervisor.pids)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not any(alive(pid) for pid in supervisor.pids.values())


async def test_the_stubborn_are_killed(monkeypatch):
    monkeypatch.setattr("services.cli.supervisor.STOP_S", 0.3)
    heard = Heard()
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready'); time.sleep(60)"
    supervisor = Supervisor([launch("mule", code)], heard)
    async with supervisor.running():
        pass
    assert heard.has("mule did not stop within 0 s: killed")
    assert not alive(supervisor.pids["mule"])


async def test_what_services_say_is_passed_on_with_their_name_in_bounded_lines():
    heard = Heard()
    code = (
        "import sys, time; sys.stderr.write('hello\\n' + 'x' * 100_000 + '\\n\\xff\\n'); print('ready'); time.sleep(60)"
    )
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(Supervisor([launch("talker", code)], heard).running())
        await until(lambda: len(heard.lines) >= 3)
    assert heard.lines[0] == "talker | hello"
    assert len(heard.lines[1]) < 20_000


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
def test_services_die_with_a_supervisor_that_is_killed():
    code = (
        "import asyncio, sys\n"
        "from services.cli.fleet import Launch\n"
        "from services.cli.supervisor import Supervisor\n"
        f"fleet = [Launch(name='a', stage=0, command=(sys.executable, '-c', {SERVE!r}), env={{}})]\n"
        "async def main():\n"
        "    supervisor = Supervisor(fleet, print)\n"
        "    async with supervisor.running():\n"
        "        print(supervisor.pids['a'], flush=True)\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as supervisor:
        child = int(supervisor.stdout.readline())
        assert alive(child)
        supervisor.kill()
    deadline = time.monotonic() + 10
    while alive(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not alive(child)
