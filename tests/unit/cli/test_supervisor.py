"""Test the supervisor with real processes. Small Python programs take the place of the services."""

import asyncio
import errno
import os
import signal
import subprocess
import sys
import time
from contextlib import AsyncExitStack

import pytest
import uvloop

from services.cli.tree.process_specs import ProcessSpec
from services.cli.tree.restarts import RestartPolicy
from services.cli.tree.supervisor import Supervisor
from services.runtime import UserError
from tests.support.waiting import until

pytestmark = pytest.mark.slow

SERVE = "import time, sys; print('ready here'); time.sleep(60)"
QUICK = RestartPolicy(first_s=0.05, longest_s=0.1, most=3, within_s=60)


def make_spec(name, code=SERVE, stage=0, **more):
    return ProcessSpec(name=name, stage=stage, command=(sys.executable, "-c", code), env={}, **more)


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class LineCollector:
    def __init__(self):
        self.texts = []

    def __call__(self, line):
        self.texts.append(line)

    def has(self, text):
        return any(text in line for line in self.texts)


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
    specs = [
        ProcessSpec(name=name, stage=stage, command=(sys.executable, "-c", code, name), env={})
        for name, stage in (("a", 0), ("b", 1), ("c", 2))
    ]
    async with Supervisor(specs, LineCollector()).running():
        first, *others = log.read_text().split()
        assert first == "+a"
        assert sorted(others) == ["+b", "+c"]
    assert log.read_text().split()[3:] == ["-c", "-b", "-a"]


async def test_each_process_has_its_nice_level_and_group_in_our_session():
    # In a session of its own it would be scheduled as if nobody were nice: Linux weighs sessions, then processes.
    here = os.getpriority(os.PRIO_PROCESS, 0)
    supervisor = Supervisor([make_spec("first"), make_spec("last", nice=7)], LineCollector())
    async with supervisor.running():
        found = {name: os.getpriority(os.PRIO_PROCESS, pid) - here for name, pid in supervisor.pids.items()}
        assert found == {"first": 0, "last": min(7, 19 - here)}
        for pid in supervisor.pids.values():
            assert os.getpgid(pid) == pid
            assert os.getsid(pid) == os.getsid(0)


async def test_a_killed_service_is_started_again_and_named():
    lines, started = LineCollector(), []
    supervisor = Supervisor([make_spec("worker"), make_spec("other")], lines, lambda: started.append(1), QUICK)
    async with supervisor.running():
        before = supervisor.pids
        os.kill(before["worker"], signal.SIGKILL)
        await until(lambda: supervisor.pids["worker"] != before["worker"])
        assert supervisor.pids["other"] == before["other"]
        assert lines.has("worker ended with signal 9; starting it again")
        assert len(started) == 3
        assert lines.has("worker ready after ")
        after = supervisor.pids
    assert not any(alive(pid) for pid in after.values())


async def test_what_the_operator_must_mend_ends_everything():
    bad = make_spec("sick", "import sys; sys.stderr.write('railbus sick: no weights: install them\\n'); sys.exit(2)")
    supervisor = Supervisor([make_spec("well"), bad], LineCollector(), policy=QUICK)
    with pytest.raises(UserError, match=r"^sick cannot run: no weights: install them$"):
        async with supervisor.running():
            raise AssertionError("it must not come to serve")
    assert not any(alive(pid) for pid in supervisor.pids.values())


async def test_a_mistake_found_later_ends_the_block_too():
    lines = LineCollector()
    code = "import sys, time; print('ready'); time.sleep(0.5); sys.exit(2)"
    with pytest.raises(UserError, match="late cannot run: ready"):
        async with Supervisor([make_spec("late", code)], lines).running():
            await asyncio.sleep(30)


async def test_it_gives_up_on_a_service_that_ends_again_and_again():
    lines = LineCollector()
    with pytest.raises(UserError, match=r"^flaky ended 3 times within 60 s, last with exit code 7: oh dear$"):
        async with Supervisor(
            [make_spec("flaky", "print('oh dear'); raise SystemExit(7)")], lines, policy=QUICK
        ).running():
            pass
    assert sum("flaky ended with exit code 7; starting" in line for line in lines.texts) == 2


async def test_a_service_that_never_serves_ends_the_tree_after_two_starts():
    lines = LineCollector()
    with pytest.raises(UserError, match=r"^mute did not serve within 0 s in 2 starts: it wrote nothing$"):
        async with Supervisor(
            [make_spec("mute", "import time; time.sleep(60)", ready_s=0.3)], lines, policy=QUICK
        ).running():
            pass
    assert lines.has("mute did not serve within 0 s")


async def test_nobody_waits_for_a_service_that_is_not_awaited():
    say = LineCollector()
    slow = make_spec("slow", "import time; time.sleep(60)", stage=3, awaited=False)
    async with Supervisor([make_spec("one"), slow], say, policy=QUICK).running():
        assert say.has("one ready")
        await until(lambda: True)
    assert not say.has("slow ready")


async def test_the_others_go_on_without_it_if_it_cannot_run():
    say = LineCollector()
    wrong = "import sys; sys.stderr.write('railbus books: no pen\\n'); sys.exit(2)"
    specs = [make_spec("one"), make_spec("books", wrong, stage=3, awaited=False)]
    supervisor = Supervisor(specs, say, policy=QUICK)
    async with supervisor.running():
        await until(lambda: say.has("going on without books until the next start: books cannot run: no pen"))
        assert alive(supervisor.pids["one"])


async def test_a_program_that_is_not_there_is_named():
    missing = ProcessSpec(name="ghost", stage=0, command=("/nowhere/ghost",), env={})
    with pytest.raises(UserError, match="ghost cannot be started: /nowhere/ghost: No such file"):
        async with Supervisor([missing], LineCollector()).running():
            pass


async def test_errors_of_the_block_pass_through_and_everything_stops():
    supervisor = Supervisor([make_spec("a")], LineCollector())
    with pytest.raises(ValueError, match="mine"):
        async with supervisor.running():
            raise ValueError("mine")
    assert not alive(supervisor.pids["a"])


async def test_cancelling_the_block_stops_everything():
    supervisor = Supervisor([make_spec("a"), make_spec("b", stage=1)], LineCollector())

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
    monkeypatch.setattr("services.cli.tree.supervisor.STOP_S", 0.3)
    lines = LineCollector()
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready'); time.sleep(60)"
    supervisor = Supervisor([make_spec("mule", code)], lines)
    async with supervisor.running():
        pass
    assert lines.has("mule did not stop within 0 s: killed")
    assert not alive(supervisor.pids["mule"])


def test_a_pause_while_the_processes_stop_is_no_crash(monkeypatch):
    monkeypatch.setattr("services.cli.tree.supervisor.STOP_S", 0.6)
    lines = LineCollector()
    code = "import signal, sys, time; signal.signal(15, lambda *_: (time.sleep(0.4), sys.exit()))\n" + SERVE

    async def serve():
        async with Supervisor([make_spec("a"), make_spec("b", code, stage=1)], lines).running():
            asyncio.get_running_loop().call_later(0.2, time.sleep, 1)  # as SIGSTOP does; "b" ends meanwhile

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())
    assert not lines.has("killed")


async def test_what_services_say_is_passed_on_with_their_name_in_bounded_lines():
    lines = LineCollector()
    code = (
        "import sys, time; sys.stderr.write('hello\\n' + 'x' * 100_000 + '\\n\\xff\\n'); print('ready'); time.sleep(60)"
    )
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(Supervisor([make_spec("talker", code)], lines).running())
        await until(lambda: len(lines.texts) >= 4)
    texts = [text for text in lines.texts if text.startswith("talker | ")]
    assert texts[0] == "talker | hello"
    assert len(texts[1]) < 20_000


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
def test_services_die_with_a_supervisor_that_is_killed():
    code = (
        "import asyncio, sys\n"
        "from services.cli.tree.process_specs import ProcessSpec\n"
        "from services.cli.tree.supervisor import Supervisor\n"
        f"specs = [ProcessSpec(name='a', stage=0, command=(sys.executable, '-c', {SERVE!r}), env={{}})]\n"
        "async def main():\n"
        "    supervisor = Supervisor(specs, lambda _: None)\n"
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


async def test_a_machine_that_can_fork_no_process_for_a_moment_ends_nothing(monkeypatch):
    start, short = asyncio.create_subprocess_exec, [False]

    async def create(*given, **more):
        if short[0]:
            short[0] = False
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return await start(*given, **more)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", create)
    lines = LineCollector()
    supervisor = Supervisor([make_spec("worker"), make_spec("other")], lines, policy=QUICK)
    async with supervisor.running():
        before, short[0] = supervisor.pids, True
        os.kill(before["worker"], signal.SIGKILL)
        await until(lambda: supervisor.pids["worker"] != before["worker"])
        assert supervisor.pids["other"] == before["other"]
        assert lines.has("worker cannot be started: ")
