"""Tests of the program ``railbus``: how it starts, reports a user's mistakes, and ends at Ctrl-C."""

import os
import re
import signal
import subprocess
import sys
import tomllib
from types import SimpleNamespace

import pytest

from services.cli import program
from services.cli.__main__ import main
from tests.support.brokers import ROOT


def railbus(*args, cwd, **env):
    return subprocess.run(
        [sys.executable, "-m", "services.cli", *args],
        capture_output=True, text=True, timeout=60, cwd=cwd, check=False, stdin=subprocess.DEVNULL,
        env={name: value for name, value in os.environ.items() if not name.startswith("RAILBUS_")} | env,
    )  # fmt: skip


@pytest.mark.slow  # each is a process
@pytest.mark.parametrize(
    ("args", "env", "said"),
    [
        (["ask", ""], {}, "railbus ask: the prompt is empty"),
        (["ask", "--temperature", "nan", "hi"], {}, "argument --temperature: 'nan': must be a number"),
        (["ask", "--seed", "9" * 30, "hi"], {}, f"argument --seed: '{'9' * 30}': must be a whole number within"),
        (["ask", b"\xff"], {}, "argument prompt: must be UTF-8 text"),
        (["batch", "run", "x.txt", "--out", "x", "--temperature", "inf"], {}, "--temperature: 'inf': must be a number"),
        (["batch", "run", "x.txt", "--out", "x", "--system", b"\xff"], {}, "argument --system: must be UTF-8 text"),
        (["tune", "--engine", "simulated", "--out", "/dev/null"], {}, "--out /dev/null/report.md: cannot be written"),
        (["tune", "--margin", "nan"], {}, "argument --margin: 'nan': must be a number"),
        (["bench", "engine", "--out", "/dev/null/x.json"], {}, "--out /dev/null/x.json: cannot be written"),
        (["bench", "engine", "--plot", "x.gif"], {}, "--plot x.gif: the file must end in .png or .svg"),
        (["bench", "engine", "--rate", "nan"], {}, "argument --rate: 'nan': must be a number"),
        (["topics", "--kafka", "nowhere"], {}, "--kafka 'nowhere': must be HOST:PORT, such as 127.0.0.1:9092"),
        (["topics"], {"RAILBUS_KAFKA_BOOTSTRAP": "nowhere"}, "RAILBUS_KAFKA_BOOTSTRAP='nowhere': must be HOST:PORT"),
        (["topics"], {"RAILBUS_PARTITIONS": "many"}, "RAILBUS_PARTITIONS='many': must be a whole number"),
        (["tail", "--request", "42"], {}, "--request '42': must be a UUIDv7"),
        (["tail", "--topic", "gossip"], {}, "--topic 'gossip': must be one of railbus.requests"),
        (["tail", "--from", "yesterday"], {}, "--from 'yesterday' is no moment"),
        (["up", "--engine", "openai"], {}, "--engine openai needs --upstream-url"),
        (["up", "--draft-path", "DIR"], {}, "leave it out, or choose --engine vllm; RAILBUS_LLAMA_SPECULATION"),
        (["up", "--engine", "simulated", "--draft-path", "DIR"], {}, "has no effect with engine simulated"),
        (["doctor"], {"RAILBUS_LOG_LEVEL": "LOUD"}, "RAILBUS_LOG_LEVEL='LOUD'"),
        (["gossip"], {}, "invalid choice: 'gossip'"),
        ([], {}, "railbus: name a command; `railbus up --ask` starts everything"),
        (["tail", "--requst", "x"], {}, "usage: railbus tail "),
        (["dead", "list", "--bogus"], {}, "railbus dead list: error: unrecognized arguments: --bogus"),
        (["up", "--port", "99999", "--engine", "simulated", "--no-governed"], {}, "--port 99999: must be between"),
        (["up", "--engine", "simulated", "--no-governed"], {"RAILBUS_STATE_DIR": "/dev/null/x"}, "RAILBUS_STATE_DIR"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_and_exit_code_2(tmp_path, args, env, said):
    done = railbus(*args, cwd=tmp_path, **env)
    assert done.returncode == 2, done
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.slow  # each is a process
@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_standard_input_that_is_not_text_is_a_mistake(tmp_path, locale):
    done = subprocess.run(
        [sys.executable, "-m", "services.cli", "ask", "-"], input=b"\xff\xfe", capture_output=True, timeout=60,
        cwd=tmp_path, check=False, env={**os.environ, "LC_ALL": locale, "PYTHONUTF8": "0"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (2, b"railbus ask: standard input is not UTF-8 text\n")


@pytest.mark.parametrize("env", [{}, {"RAILBUS_LOG_LEVEL": ""}])
def test_an_edge_that_is_not_there_is_said_with_the_remedy(tmp_path, env):
    done = railbus("ask", "hi", "--url", "http://127.0.0.1:9", cwd=tmp_path, **env)
    assert done.returncode == 1
    assert "no edge at http://127.0.0.1:9" in done.stderr
    assert "railbus up" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_taken_port_is_said_with_the_remedy(tmp_path):
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = railbus("up", "--engine", "simulated", "--port", str(port), cwd=tmp_path)
    assert done.returncode == 2
    assert f"railbus up: --port {port}: the port is in use" in done.stderr
    assert "--port" in done.stderr


def test_ctrl_c_during_the_imports_ends_the_program_in_silence(tmp_path):
    code = (
        "import signal, services.cli.__main__ as program\n"
        "program._module = lambda name: signal.raise_signal(signal.SIGINT)\n"
        "program.main(['ask', 'hi'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, cwd=tmp_path, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, b"", b"")


ENTRY = """
import signal, sys
before = set(sys.modules)
from services.cli.entry import main
{then}
"""


def run_entry(then, folder):
    """Start a Python process that imports ``main`` as the installed ``railbus`` does, and runs the code in ``then``.

    Return exit code, output and errors.
    """
    code = ENTRY.format(then=then)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, cwd=folder, check=False)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_the_installed_program_begins_at_the_entry():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["scripts"] == {"railbus": "services.cli.entry:main"}


def test_the_entry_imports_nothing_before_ctrl_c_is_silent(tmp_path):
    code, output, errors = run_entry("print(sorted(set(sys.modules) - before))", tmp_path)
    assert (code, errors) == (0, "")
    assert output == "['services', 'services.cli', 'services.cli.entry']\n"


def test_ctrl_c_before_the_programs_own_imports_is_silent(tmp_path):
    interrupt = """
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "services.cli.__main__":
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
sys.argv = ["railbus", "ask", "hi"]
main()
"""
    assert run_entry(interrupt, tmp_path) == (-signal.SIGINT, "", "")


def test_ctrl_c_while_the_subcommand_runs_is_exit_code_130(tmp_path):
    interrupt = """
from types import SimpleNamespace
import services.cli.__main__ as program
command = SimpleNamespace(add_arguments=lambda _: None, run=lambda _: signal.raise_signal(signal.SIGINT))
program._module = lambda name: command
sys.argv = ["railbus", "doctor"]
sys.exit(main())
"""
    assert run_entry(interrupt, tmp_path) == (130, "", "")


def test_ctrl_c_in_a_program_of_a_subcommand_is_silent(tmp_path):
    (tmp_path / "interrupted.py").write_text(
        "import signal, sys\n"
        "assert (__name__, sys.argv[1:]) == ('__main__', ['--seed', '1'])\n"
        "signal.raise_signal(signal.SIGINT)\n"
    )
    done = subprocess.run(
        program.command("interrupted", "--seed", "1"), capture_output=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"},
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, b"", b"")


@pytest.mark.parametrize(
    "args", [("plan", "latency"), ("simulate", "--runs", "1"), ("audit", "rejudge", "--policy", "x", "--archive", "y")]
)
def test_a_program_of_a_subcommand_is_started_so(monkeypatch, args):
    started = []

    def start(given, **_):
        started.append(given)
        return SimpleNamespace(returncode=0, wait=lambda: 0, terminate=lambda: None)

    monkeypatch.setattr(subprocess, "run", start)
    monkeypatch.setattr(subprocess, "Popen", start)
    assert main(args) == 0
    assert started[0][:4] == [sys.executable, "-P", "-m", "services.cli.program"]


def test_help_names_every_command(tmp_path):
    done = railbus("--help", cwd=tmp_path)
    assert done.returncode == 0
    for command in ("up", "ask", "tail", "topics", "doctor"):
        assert f"\n    {command} " in done.stdout


def test_the_version_is_the_installed_one(tmp_path):
    done = railbus("--version", cwd=tmp_path)
    assert done.returncode == 0
    assert re.fullmatch(r"railbus (\d+\.\d+\.\d+|unknown: .*)\n", done.stdout)


@pytest.mark.slow
def test_the_doctor_says_what_is_installed_without_a_tree(tmp_path):
    done = railbus("doctor", "--url", "http://127.0.0.1:9", cwd=tmp_path, RAILBUS_KAFKA_BOOTSTRAP="127.0.0.1:9")
    assert done.returncode == 1, "an edge that was named and is not there is needed"
    lines = {line.split()[1]: line for line in done.stdout.splitlines()[:-1]}
    assert lines["python"].startswith("ok")
    assert lines["aiokafka"].startswith("ok")
    assert lines["broker"].startswith("-  ")
    assert lines["edge"].startswith("MISSING")
    assert "railbus up" in lines["edge"]
