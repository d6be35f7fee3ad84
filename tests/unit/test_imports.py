"""Test which packages import which: services may import libraries, and libraries may import ``schemas``.

The tests read the source files and import nothing.
"""

import ast
import symtable
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

LIBRARIES = {
    "services.runtime": {"schemas"},
    "services.stream": {"schemas"},
    "services.books": {"schemas", "services.stream"},
    "services.physics": {"schemas"},
    "services.policy": {"schemas", "services.runtime"},
    "services.bus": {"schemas", "services.runtime"},
    "services.worker": {"schemas", "services.runtime", "services.bus"},
    "services.processor": {"schemas", "services.runtime", "services.bus"},
    "services.archive": {"schemas", "services.runtime", "services.bus"},
    "services.jobs": {"schemas", "services.runtime", "services.bus"},
}
"""The packages of this project that each library may import. Services may import ``schemas`` and every library, but not
each other."""

SIMULATOR = "services.simulator"
SIMULATED = {"services.edge", "services.rails", "services.router", "services.safety"}
"""The services that the simulator may import, because it runs them in one process. It may import only their pure
modules. No package may import the simulator."""

KAFKA_CLIENT = {"services.bus"}
KAFKA_CODEC = {"services.broker": ("aiokafka.protocol", "aiokafka.record", "aiokafka.errors", "aiokafka.codec")}
"""The embedded broker is the server side of Kafka's protocol. It may use aiokafka's message and batch formats, but not
its client."""

PURE = (
    "schemas",
    "services.archive.chain",
    "services.archive.checkpoint",
    "services.audit.buffer",
    "services.batch.core",
    "services.batch.figures",
    "services.batch.job",
    "services.batch.line_state",
    "services.books",
    "services.broker.groups.group",
    "services.broker.storage.partition_log",
    "services.broker.storage.producer_state",
    "services.bus.groups.commit_tracker",
    "services.bus.groups.held_partitions",
    "services.bus.read.log_clock",
    "services.bus.write.outbox",
    "services.cli.audit.page",
    "services.cli.audit.refold",
    "services.cli.bench.arms",
    "services.cli.client.answer_summary",
    "services.cli.client.chat_request",
    "services.cli.demo.annotated_text",
    "services.cli.demo.scenes",
    "services.cli.demo.styled_text",
    "services.cli.demo.timeline",
    "services.cli.host.findings",
    "services.cli.host.nvidia",
    "services.cli.show.dead_letters",
    "services.cli.show.doctor_report",
    "services.cli.show.event_format",
    "services.cli.time_spec",
    "services.cli.tree.process_specs",
    "services.cli.tree.restarts",
    "services.devtools.vertex.script",
    "services.edge.delivery.held_events",
    "services.edge.delivery.session",
    "services.edge.delivery.stats",
    "services.edge.encoders",
    "services.edge.errors",
    "services.edge.http.connection_table",
    "services.edge.http.access.proxies",
    "services.edge.ledger.report",
    "services.edge.ledger.window_store",
    "services.edge.log.follow_plan",
    "services.edge.log.positions",
    "services.edge.log.request_index",
    "services.edge.log.unreadable",
    "services.edge.requests.chat_schema",
    "services.edge.requests.parse",
    "services.edge.requests.rate_limit",
    "services.generator.bench.workload",
    "services.generator.engines.chat_completions.parser",
    "services.generator.engines.simulated.batch_scheduler",
    "services.generator.engines.simulated.fault_script",
    "services.generator.engines.simulated.sequence",
    "services.generator.engines.vllm.arguments",
    "services.generator.engines.vllm.output_parser",
    "services.generator.engines.vllm.start_errors",
    "services.jobs.ids",
    "services.jobs.job_state",
    "services.jobs.lines",
    "services.jobs.prefix_order",
    "services.jobs.result_lines",
    "services.physics",
    "services.planner.batch.choose",
    "services.planner.batch.hardware",
    "services.planner.batch.offers",
    "services.planner.batch.plan",
    "services.planner.batch.report",
    "services.planner.batch.sample",
    "services.planner.batch.ways",
    "services.planner.bench.bands",
    "services.planner.bench.calibration",
    "services.planner.bench.closed_loops",
    "services.planner.bench.fit",
    "services.planner.bench.open_loops",
    "services.planner.latency.plan",
    "services.planner.latency.plan_input",
    "services.planner.latency.report",
    "services.planner.serve",
    "services.policy.matching",
    "services.processor.core",
    "services.processor.fair_queue",
    "services.processor.skew",
    "services.rails.core",
    "services.rails.decide",
    "services.rails.rejudge.compare",
    "services.router.config",
    "services.router.core",
    "services.router.dead_letters",
    "services.router.decide",
    "services.router.partition",
    "services.router.state",
    "services.runtime.chat_body",
    "services.safety.core",
    "services.safety.decide",
    "services.processor.fair_queue",
    "services.safety.partition",
    "services.safety.rejudge.compare",
    "services.simulator",
    "services.stream",
    "services.tracer.attributes",
    "services.tracer.core",
    "services.tracer.spans",
    "services.tuner.candidates",
    "services.tuner.decide",
    "services.tuner.experiment",
    "services.tuner.find_batch",
    "services.tuner.guide",
    "services.tuner.measurements",
    "services.tuner.plan",
    "services.tuner.quality",
    "services.tuner.report",
    "services.tuner.run.prompts",
    "services.tuner.search",
    "services.tuner.statistics",
    "services.vertex.errors",
    "services.vertex.mapping",
    "services.worker.event_builder",
    "services.worker.scheduler",
)
"""Modules and packages that make decisions and do no I/O. They get the time, ids and random numbers as arguments."""

SHELLS = ("schemas.__main__", "services.simulator.__main__", "services.simulator.runs")
"""Modules of pure packages that may do I/O, because they run the package as a program."""

IMPURE_IMPORTS = {
    "asyncio",
    "socket",
    "subprocess",
    "threading",
    "time",
    "secrets",
    "aiohttp",
    "uvloop",
    "redis",
}

IMPURE_CALLS = {"open", "print", "input"}
IMPURE_ATTRIBUTES = {
    "os": {"environ", "getenv", "urandom", "open", "read", "write", "kill"},
    "datetime": {"now", "utcnow", "today"},
    "uuid": {"uuid1", "uuid4"},
    "sys": {"stdout", "stderr", "stdin"},
}
"""Forbidden attributes, by the name to the left of the dot. Of the module ``random``, only ``Random`` is allowed."""


def sources():
    files = [*ROOT.glob("schemas/**/*.py"), *ROOT.glob("services/**/*.py")]
    return {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in files}


def package(module):
    """Return the package whose rules apply to a module: ``schemas``, or ``services.NAME``."""
    parts = module.split(".")
    return parts[0] if parts[0] == "schemas" else ".".join(parts[:2])


@cache
def import_statements(path):
    """Return all import statements of a file, also those inside functions.

    The syntax tree is not kept, because the trees of a thousand files slow down all tests.
    """
    found, blocks = [], [ast.parse(path.read_text(encoding="utf-8"))]
    while blocks:
        block = blocks.pop()
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            for statement in getattr(block, name, ()):
                (found if isinstance(statement, ast.Import | ast.ImportFrom) else blocks).append(statement)
    return tuple(found)


@cache
def imports(path):
    """Return the names of all modules that a file imports, also inside functions. Fail if it has a relative import."""
    found = set()
    for node in import_statements(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} has a relative import: name the package"
            found |= {node.module or ""} if node.module != "services" else {f"services.{a.name}" for a in node.names}
    return found


SOURCES = sources()


def is_within(module, prefixes):
    return any(module == prefix or module.startswith(prefix + ".") for prefix in prefixes)


def test_the_sources_are_found():
    assert "schemas.wire" in SOURCES
    assert len(SOURCES) > 30


def test_imports_point_one_way():
    faults = []
    for module, path in SOURCES.items():
        own = package(module)
        used = {package(name) for name in imports(path) if name.split(".")[0] in {"schemas", "services"}} - {own}
        # Services communicate over the log, and do not import each other. ``schemas`` imports none of them.
        allowed = set() if own == "schemas" else LIBRARIES.get(own, {"schemas", *LIBRARIES})
        if own == SIMULATOR:
            allowed |= SIMULATED
            impure = (name for name in imports(path) if package(name) in SIMULATED and not is_within(name, PURE))
            faults += [f"{module} imports {name}: a simulation has no room for what does I/O" for name in impure]
        faults += [f"{module} imports {name}, which stands above or beside it" for name in used - allowed]
    assert not faults


def test_only_the_bus_is_a_kafka_client():
    faults = []
    for module, path in SOURCES.items():
        own = package(module)
        if own in KAFKA_CLIENT:
            continue
        clients = {name for name in imports(path) if is_within(name, ("aiokafka", "kafka", "confluent_kafka"))}
        allowed = KAFKA_CODEC.get(own, ())
        faults += [f"{module} imports {name}: use services.bus" for name in clients if not is_within(name, allowed)]
    assert not faults


def is_pure(module):
    return is_within(module, PURE) and module not in SHELLS


@pytest.mark.parametrize("module", [module for module in SOURCES if is_pure(module)])
def test_decisions_do_no_io(module):
    tree = tuple(ast.walk(ast.parse(SOURCES[module].read_text(encoding="utf-8"))))
    assert not {name.split(".")[0] for name in imports(SOURCES[module])} & IMPURE_IMPORTS
    awaits = [node.lineno for node in tree if isinstance(node, ast.AsyncFunctionDef | ast.Await)]
    assert not awaits, f"{module} awaits in lines {awaits}"
    called = {node.func.id for node in tree if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert not called & IMPURE_CALLS, f"{module} calls {called & IMPURE_CALLS}"
    for node in tree:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner = node.value.id
            assert node.attr not in IMPURE_ATTRIBUTES.get(owner, ()), f"{module}:{node.lineno} uses {owner}.{node.attr}"
            if owner == "random":
                assert node.attr == "Random", (
                    f"{module}:{node.lineno} draws by itself: a generator must be its argument"
                )


def test_what_the_rules_speak_of_exists():
    packages = {package(module) for module in SOURCES}
    assert {*LIBRARIES, *KAFKA_CLIENT, *KAFKA_CODEC} <= packages
    for prefix in PURE:
        assert any(is_within(module, (prefix,)) for module in SOURCES), f"{prefix} is gone: name what took its place"


@cache
def defined(path):
    """Return the names that can be imported from a module or package, including the names of submodules."""
    if not path.exists():
        return set()
    names = {file.stem for file in path.parent.glob("*")} if path.name == "__init__.py" else set()
    symbols = symtable.symtable(path.read_text(encoding="utf-8"), str(path), "exec").get_symbols()
    return names | {symbol.get_name() for symbol in symbols if symbol.is_assigned() or symbol.is_imported()}


@pytest.mark.slow
@pytest.mark.parametrize("top", ["schemas", "services", "infra", "tests"])
def test_what_is_imported_from_us_exists(top):
    """Every name that is imported from this project exists, also in code that most test runs never execute."""
    missing = []
    for path in (ROOT / top).rglob("*.py"):
        for node in import_statements(path):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in {
                "schemas",
                "services",
                "tests",
            }:
                file = ROOT.joinpath(*node.module.split("."))
                known = defined(file / "__init__.py" if file.is_dir() else file.with_suffix(".py"))
                missing += [f"{path.name}:{node.lineno} {a.name}" for a in node.names if a.name not in known]
    assert not missing


def test_opentelemetry_is_imported_only_where_spans_are_exported():
    """Only two modules of the tracer import OpenTelemetry, and they do so only inside functions.

    So tracing costs nothing without a collector.
    """
    users = {module for module, path in SOURCES.items() if any(is_within(n, ("opentelemetry",)) for n in imports(path))}
    assert users == {"services.tracer.exporter", "services.tracer.encoder_cache"}
    at_start = [
        name
        for user in users
        for node in ast.parse(SOURCES[user].read_text(encoding="utf-8")).body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names])
    ]
    assert not any(name.startswith("opentelemetry") for name in at_start)
