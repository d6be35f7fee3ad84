"""Test the engine that evaluates Rego without a server. A decision of the wrong form is an error."""

import gc
import threading
import weakref

import pytest

from services.policy import BrokenPolicy, Finding, RulingError, load, read_admission, read_ruling
from services.policy.engines.rego import Rego, _thread
from tests.support.policies import ROOT, copy_policy, replace_in_file


def rego(source, data=None):
    return Rego({"a.rego": source}, data or {}, ("data.a.x",))


def test_it_answers_from_input_and_data():
    asked = rego("package a\nimport rego.v1\nx := {input.k: data.values[input.k]}\n", {"values": {"one": 1}})
    assert asked.ask("data.a.x", {"k": "one"}) == {"one": 1}
    assert asked.ask("data.a.x", {"k": "two"}) is None


def test_any_thread_may_free_it_and_machines_are_freed_by_their_own():
    first = rego("package a\nimport rego.v1\nx := 1\n")
    first.ask("data.a.x", {})
    first.itself = first  # only the garbage collector frees it
    freed = weakref.ref(first)
    of_first = next(reversed(_thread.machines.values()))
    del first
    other = threading.Thread(target=gc.collect)
    other.start()
    other.join()
    assert freed() is None
    gc.collect()  # what another thread could not free is told by now
    assert rego("package a\nimport rego.v1\nx := 2\n").ask("data.a.x", {}) == 2
    assert of_first not in _thread.machines.values()


def test_it_may_be_asked_from_any_thread():
    asked = rego("package a\nimport rego.v1\nx := input.k\n")
    answers = [asked.ask("data.a.x", {"k": 0})]
    threads = [threading.Thread(target=lambda n=n: answers.append(asked.ask("data.a.x", {"k": n}))) for n in (1, 2)]
    for thread in threads:
        thread.start()
        thread.join()
    assert answers == [0, 1, 2]


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("package a\nx := {\n", 3),
        ("package a\n\nx = 1 { true }\n", 3),
        ("package a\nimport rego.v1\nx if y == 1\n", 3),
        ("package a\nimport rego.v1\n\n\nx := nonsense(1)\n", 5),
        ("package b\nx := 1\n", 0),
    ],
)
def test_errors_have_their_line(source, line):
    with pytest.raises(BrokenPolicy) as broken:
        rego(source)
    (fault,) = broken.value.faults
    assert (fault.path, fault.line) == ("a.rego", line)
    assert "unknown>" not in fault.message


def test_two_values_for_one_rule_are_no_answer():
    both = rego("package a\nimport rego.v1\nx := 1 if input.k\nx := 2 if input.k\n")
    assert both.ask("data.a.x", {"k": True}) is None


@pytest.mark.parametrize(
    "answer",
    [None, "allow", [], {}, {"allow": "yes"}, {"allow": True, "delivery": {"mode": "fast"}}, {"allow": True, "x": 1}],
)
def test_an_admission_of_another_form_is_an_error(answer):
    with pytest.raises(RulingError, match=r"data\.railbus\.admission\.decision"):
        read_admission(answer)


@pytest.mark.parametrize(
    ("answer", "side"),
    [(None, "output"), ({"action": "mask"}, "output"), ({"action": "stop"}, "input"), ({"action": "allow"}, "input")],
)
def test_a_ruling_of_another_form_or_side_is_an_error(answer, side):
    with pytest.raises(RulingError, match=r"data\.railbus\.findings\.decision"):
        read_ruling(answer, side)


def test_a_policy_whose_rego_is_undefined_raises_each_time(tmp_path):
    folder = copy_policy(tmp_path)
    replace_in_file(folder, "rego/findings.rego", "} else := strictest[input.side]", "}")
    policy = load(folder)
    for _ in range(2):
        with pytest.raises(RulingError):
            policy.rule_on(Finding(tenant="t", side="output", category="novelty", rule="r"))


def test_replacements_come_from_rego_else_from_the_category():
    policy = load(ROOT / "policies/default")

    def shown(category):
        finding = Finding(tenant="t", side="output", category=category, rule="r")
        return policy.replacement(policy.rule_on(finding), category)

    assert shown("email") == "[email address]"
    assert shown("private_key") == policy.document.replacements["stop"]
    assert policy.replacement(read_ruling({"action": "redact", "replacement": "***"}, "output"), "email") == "***"
    assert policy.replacement(read_ruling({"action": "redact"}, "output"), "novelty") == "[removed]"
    assert policy.refusal("model") != policy.refusal("no such reason") == policy.refusal("default")
