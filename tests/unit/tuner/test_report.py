"""Tests of ``railbus tune``: the report as HTML, Markdown and JSON, its checklist, and the environment file."""

import io
import random
import re
import shlex
import subprocess
from html.parser import HTMLParser
from typing import get_args

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.physics.statistics import Interval
from services.runtime.errors import UserError
from services.tuner.__main__ import main
from services.tuner.candidates import Surroundings, candidates
from services.tuner.decide import Trial
from services.tuner.experiment import UNCHANGED, ExperimentError, Rules, SettingsChange, Size, parse_settings
from services.tuner.guide import GUIDE, ITEMS, check_guide
from services.tuner.measurements import Round
from services.tuner.plan import TunePlan
from services.tuner.quality.compare import Answers, TextScore, compare
from services.tuner.quality.tasks import is_solved, task_set
from services.tuner.report.document import About, _accuracy_mark, as_json, tune_sections
from services.tuner.report.drawings import forest
from services.tuner.report.forms import env_file, markdown, page
from services.tuner.run.laboratory import Laboratory
from services.tuner.run.prompts import prompts
from services.tuner.search import Search
from services.worker.engine import EngineName
from tests.unit.tuner.simulated_loads import rounds

ABOUT = About(
    command="railbus tune --engine llama", engine="llama", model="<b>m</b>", cpus=2, load=0.5, shape="two at once",
    minutes=3.0,
)  # fmt: skip
SIZE = Size(rounds=6, load=16, reason="200 were asked for")


def quality(loss=0.01):
    scores = tuple(TextScore(nats=100.0 + at, tokens=40) for at in range(12))
    worse = tuple(TextScore(nats=each.nats + 40 * loss, tokens=40) for each in scores)
    texts = tuple(f"{at}" for at in range(48))
    right = [f"{at}" for at in range(48)]
    return compare(Answers(texts, scores), Answers(texts, scores), Answers(texts, worse), right)


def with_memory(measured, after_mib):
    return tuple(
        Round(each.before, tuple(msgspec.structs.replace(load, memory_mib=after_mib) for load in each.after))
        for each in measured
    )


def searched(loss=0.01, after_mib=300.0):
    """Return a finished search among five changes.

    Two changes are gains, and one of these two is lossy: it may alter answers. One change has no effect, one failed,
    and one was skipped because the time was used up.

    Args:
        loss: Rise of the perplexity by the lossy change, as a share.
        after_mib: Memory of the engine with a change. Without a change, it is 300 MiB.
    """
    rng, size = random.Random(7), Size(rounds=6, load=16)
    changes = [
        SettingsChange(name="cache", settings={"A": "1"}, item="prefix-cache"),
        SettingsChange(name="batch", settings={"B": "1"}, item="batching"),
        SettingsChange(name="eager", settings={"C": "1"}, item="compilation"),
        SettingsChange(name="kv", settings={"D": "1"}, item="kv", lossy=True),
        SettingsChange(name="pin", settings={"E": "1"}, item="pinning"),
    ]
    search = Search(changes, base={"RAILBUS_ENGINE": "llama"}, defaults={}, rules=Rules(max_loss=0.05), budget_s=50)
    effects = {"cache": 0.6, "kv": 0.7}
    elapsed = 0.0
    while (change := search.next(elapsed)) is not None:
        elapsed += 10
        measured = with_memory(
            rounds(rng, 6, effect=effects.get(change.name, 1.0), process=0.002, drift=0.01), after_mib
        )
        error = "engine x: no GPU" if change.name == "eager" else ""
        search.record(
            Trial(change=change, base=dict(search.best), size=size, rounds=() if error else measured, error=error,
                  quality=quality(loss) if change.lossy else None)
        )  # fmt: skip
    return search


def test_the_checklist_ticks_what_is_kept_and_says_why_the_rest_is_not():
    found = {each.item.key: each for each in check_guide(searched())}
    assert found["prefix-cache"].state == "ticked"
    assert found["prefix-cache"].within_claim is False  # 1.7 times, and the guide says 10 to 100
    assert found["batching"].state in {"refuted", "unclear"}
    assert (found["compilation"].state, found["compilation"].reason) == ("not tried", "eager: engine x: no GPU")
    assert found["kv"].state == "ticked"
    assert found["pinning"].reason == "pin: the budget of 0.833 minutes is spent"
    assert "plan serve" in found["tensor-parallel"].reason
    assert set(found) == {item.key for item in GUIDE}


def verified(search):
    (section,) = (each for each in tune_sections(search, ABOUT, SIZE) if each.title == "The guide's verification")
    return {title: mark for mark, title, _ in section.rows}


@pytest.mark.parametrize(("loss", "mark"), [(0.005, "[x]"), (0.03, "[-]")])
def test_accuracy_is_compared_with_the_loss_that_the_guide_names(loss, mark):
    assert verified(searched(loss))["Accuracy degradation < 1 %"] == mark
    assert _accuracy_mark([Interval(0.0, -0.07, 0.07)]) == "[?]"


def test_memory_is_compared_with_its_own_limit():
    found = verified(searched(after_mib=330.0))
    assert found["Memory usage within limits"] == "[x]"


class _Loads(HTMLParser):
    """Collects the URLs in a page's attributes, and checks that its tags are closed in the right order."""

    def __init__(self):
        super().__init__()
        self.fetched, self.open = [], []

    def handle_starttag(self, tag, attrs):
        self.fetched += [value for name, value in attrs if name in {"src", "href", "data"}]
        if tag not in {"meta", "line", "circle", "polyline"}:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in {"line", "circle", "polyline"}:
            assert self.open.pop() == tag


def test_the_page_loads_nothing_and_escapes_what_it_shows():
    text = page("Tuning report", tune_sections(searched(), ABOUT, SIZE))
    parser = _Loads()
    parser.feed(text)
    assert parser.fetched == []
    assert parser.open == []
    assert "<b>m</b>" not in text
    assert 'name="viewport"' in text
    assert "url(" not in text
    assert text.count("<svg") == 1


def test_markdown_tables_are_even():
    text = markdown("Tuning report", tune_sections(searched(), ABOUT, SIZE))
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(widths) == 1
    assert "Fewer than 1,000, because 200 were asked for." in text


def test_the_data_are_json_and_say_what_is_kept():
    told = orjson.loads(orjson.dumps(as_json(searched(), ABOUT, SIZE), default=msgspec.to_builtins))
    assert [each["change"]["name"] for each in told["changes"] if each["kept"]] == ["cache", "kv"]
    assert told["best"] == {"RAILBUS_ENGINE": "llama", "A": "1", "D": "1"}
    rise = told["changes"][3]["quality"]["perplexity_rise"]
    assert rise["low"] <= rise["value"] <= rise["high"]


@pytest.mark.parametrize(
    ("setting", "printed"),
    [
        ("RAILBUS_UPSTREAM_KEY=sk-secret", "upstream_key=(set)"),
        ("RAILBUS_UPSTREAM_URL=http://me:sk-secret@host/v1", "upstream_url=http://host/v1"),
    ],
)
def test_a_secret_is_in_no_form_of_the_report(setting, printed):
    secret = parse_settings([setting])
    search = Search([SettingsChange(name="k", settings=secret, item="kv")], base=secret, defaults={}, rules=Rules())
    rng = random.Random(3)
    while (change := search.next(0)) is not None:
        search.record(Trial(change=change, base=dict(search.best), size=SIZE, rounds=rounds(rng, 3)))
    assert search.skipped  # the same key is no change
    search = Search([SettingsChange(name="k", settings=secret, item="kv")], base={}, defaults={}, rules=Rules())
    while (change := search.next(0)) is not None:
        search.record(Trial(change=change, base=dict(search.best), size=SIZE, rounds=rounds(rng, 6, effect=0.5)))
    sections = tune_sections(search, ABOUT, SIZE)
    data = orjson.dumps(as_json(search, ABOUT, SIZE), default=msgspec.to_builtins).decode()
    assert search.best == secret
    text = data + markdown("x", sections) + page("x", sections) + env_file(search.best, {}, "railbus tune")
    assert "sk-secret" not in text
    own = TunePlan(engine="openai", own_list=False, tries=(setting,))
    assert own.changes(Surroundings(engine="openai", cores=1, at_once=1, base={}))[0].name == printed


def test_without_a_measurement_there_is_a_report():
    search = Search([], base={}, defaults={}, rules=Rules())
    search.record(Trial(change=UNCHANGED, base={}, size=SIZE))
    search.next(0)
    assert "No change is worth keeping." in markdown("x", tune_sections(search, ABOUT, SIZE))
    assert forest([], title="x", margin=0.1) == ""


@given(st.dictionaries(st.from_regex(r"RAILBUS_[A-D]{1,8}", fullmatch=True),
                       st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), min_size=1, max_size=20),
                       max_size=4))  # fmt: skip
def test_the_settings_survive_a_file(settings):
    text = env_file(settings, dict.fromkeys(settings, "a reason"), "railbus tune")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert [shlex.split(line) for line in lines] == [[f"{name}={value}"] for name, value in settings.items()]
    assert text.count("\n") == 2 + 2 * len(settings)


def test_a_shell_reads_the_settings(tmp_path):
    value = "{\"cache_prompt\": true, 'x': $HOME}"
    (tmp_path / "railbus.env").write_text(
        env_file({"RAILBUS_UPSTREAM_BODY": value, "RAILBUS_X": ""}, {}, "railbus tune")
    )
    shell = 'set -a; . ./railbus.env; printf %s "$RAILBUS_UPSTREAM_BODY"; test -z "${RAILBUS_X+set}"'
    done = subprocess.run(["sh", "-c", shell], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=20)
    assert done.stdout == value


def test_a_shell_runs_nothing_of_a_setting_with_several_lines(tmp_path):
    value = "{\n  touch ran\n}"
    settings = {"RAILBUS_UPSTREAM_BODY": value}
    command = f"railbus tune --engine openai --set RAILBUS_UPSTREAM_BODY={value}"
    (tmp_path / "railbus.env").write_text(env_file(settings, {}, command))
    shell = 'set -a; . ./railbus.env; printf %s "$RAILBUS_UPSTREAM_BODY"'
    done = subprocess.run(["sh", "-c", shell], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=20)
    assert not (tmp_path / "ran").exists()
    assert (done.returncode, done.stderr, done.stdout) == (0, "", value)


@pytest.mark.parametrize("engine", get_args(EngineName))
@pytest.mark.parametrize("cores", [1, 2, 16])
def test_every_candidate_is_an_engine_setting_and_an_item_of_the_guide(engine, cores):
    around = Surroundings(engine=engine, cores=cores, at_once=4, gpu=True, models=("/m/q2.gguf",), base={})
    found = candidates(around)
    assert len({change.name for change in found}) == len(found)
    assert {change.item for change in found} <= set(ITEMS)
    known = {
        "llama": ("RAILBUS_LLAMA_", "RAILBUS_MODEL_PATH", "RAILBUS_GENERATOR_CORES"),
        "vllm": ("RAILBUS_VLLM_", "RAILBUS_MODEL_PATH"), "simulated": ("RAILBUS_SIM_",),
        "openai": ("RAILBUS_UPSTREAM_",),
    }[engine]  # fmt: skip
    assert all(name.startswith(known) for change in found for name in change.settings)


def test_a_plan_names_what_is_wrong():
    around = Surroundings(engine="llama", cores=2, at_once=2, base={})
    with pytest.raises(ExperimentError, match="choose among quantization"):
        TunePlan(engine="llama", only=("magic",)).changes(around)
    with pytest.raises(ExperimentError, match="nothing to try"):
        TunePlan(engine="llama", own_list=False).changes(around)
    own = TunePlan(engine="llama", own_list=False, tries=("kv:RAILBUS_A=1 RAILBUS_B=2",), lossy=("RAILBUS_C=3",))
    first, second = own.changes(around)
    assert (first.name, first.item, first.lossy) == ("a=1 b=2", "kv", False)
    assert (second.settings, second.lossy) == ({"RAILBUS_C": "3"}, True)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"only": ["magic"]}, "^--only 'magic': choose among quantization"),
        ({"tries": ["THREADS=2"]}, "^'THREADS=2': give a setting of the engine"),
        ({"budget_min": 0}, "^--budget: Expected"),
    ],
)
async def test_a_mistake_in_a_plan_is_told_before_an_engine_starts(monkeypatch, wrong, sentence):
    async def pilot(*_):
        pytest.fail("an engine was started")

    plan = orjson.dumps({"engine": "simulated", **wrong})
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(plan)))
    monkeypatch.setattr(Laboratory, "pilot", pilot)
    with pytest.raises(UserError, match=sentence):
        await main()


def test_the_tasks_have_one_right_answer_each_and_none_is_in_two():
    tasks = task_set()
    assert 30 <= len(tasks.tasks) <= 60
    assert len({task.question for task in tasks.tasks}) == len(tasks.tasks)
    for task in tasks.tasks:
        assert is_solved(f"It is {task.answer}!\nOr not.", task.answer)
        assert not is_solved(f"Or not.\nIt is {task.answer}", task.answer)
        assert not is_solved(f"x{task.answer}x", task.answer)
    assert not is_solved(None, "19")


def test_prompts_share_their_beginning_and_differ_after_it():
    first = prompts(3, tokens=80, shared=0.5, seed="a")
    second = prompts(3, tokens=80, shared=0.5, seed="b")
    common = " ".join(first[0].split(" ")[:33])
    assert all(text.startswith(common) for text in first + second)
    assert len(set(first + second)) == 6
    assert first == prompts(3, tokens=80, shared=0.5, seed="a")


def test_an_interval_that_is_not_finite_is_drawn_within_the_page():
    drawn = forest([("x", Interval(0.2, float("-inf"), float("inf")), False)], title="x", margin=0.02)
    assert "inf" not in re.sub(r"<title>.*?</title>", "", drawn)
