"""``make eval``: measure how well a policy's rails find attacks and personal data, and how long they take.

    python -m tests.eval FOLDER [--policy policies/default] [--most N]

FOLDER contains the packages of requirements/eval-nodeps.txt. The texts come from these packages and from Python's
reference. All input rails, including the real classifier, judge one text after another, with raised deadlines. The
output is Markdown tables with the versions of the packages.
"""

import argparse
import asyncio
import re
import statistics
import warnings
from collections import Counter, defaultdict
from pathlib import Path

from schemas.ids import uuid7
from schemas.requests import Message, Request
from services.policy import build, find_all
from services.policy.rulings import Finding
from services.policy.source.files import read_files
from tests.eval import corpora

warnings.filterwarnings("ignore", category=DeprecationWarning)  # NeMo's own configuration classes

DEADLINES = re.compile(rb"(?m)^deadline_ms = \d+")
RAILS = ("secrets", "pii", "jailbreak")


def unhurried(folder):
    files = dict(read_files(folder))
    files["policy.toml"] = DEADLINES.sub(b"deadline_ms = 60_000", files["policy.toml"])
    return build(files)


async def judged(judge, samples):
    """Return the verdict of the policy's rails on each text."""
    verdicts = []
    for number, sample in enumerate(samples):
        request = Request(
            request_id=uuid7(1, number + 1), tenant="local", at=1, source="eval",
            messages=(Message(role="user", content=sample.text),),
        )  # fmt: skip
        verdicts.append((await judge.evaluate(request)).content)
    return verdicts


def share(part, whole):
    return f"{part} of {whole} ({100 * part / whole:.1f} %)" if whole else "-"


def input_table(policy, results):
    print("| corpus | texts | denied | by jailbreak | by secrets and words | masked | cut short |")
    print("|---|---|---|---|---|---|---|")
    for corpus, verdicts in results:
        count = len(verdicts)
        outcomes = [{rail.rail: rail for rail in verdict.rails} for verdict in verdicts]
        blocked = {name: sum(rails[name].result == "blocked" for rails in outcomes) for name in RAILS}
        denied = sum(verdict.decision == "deny" for verdict in verdicts)
        masked = sum(verdict.decision == "mask" for verdict in verdicts)
        cut = sum(rails["jailbreak"].detail.startswith("read ") for rails in outcomes)
        cells = [f"{corpus.name} ({corpus.expect})", count, share(denied, count)]
        cells += [blocked["jailbreak"], blocked["secrets"], masked, cut]
        print("| " + " | ".join(map(str, cells)) + " |")


def personal_table(policy, corpus, verdicts):
    """Print how much personal data the rails find.

    A value counts as found if the prompt that the model would get does not contain it.
    """
    met, found = defaultdict(int), defaultdict(int)
    wrongly, without = 0, 0
    for sample, verdict in zip(corpus.samples, verdicts, strict=True):
        shown = (
            "" if verdict.decision == "deny" else sample.text if verdict.masked is None else verdict.masked[0].content
        )
        for placeholder, value in sample.values:
            met[placeholder] += 1
            found[placeholder] += value not in shown
        if not any(placeholder in corpora.COVERED for placeholder, _ in sample.values):
            without += 1
            wrongly += verdict.decision == "mask"
    print("| personal data | what policy does | values | kept from the model |")
    print("|---|---|---|---|")
    for placeholder, category in corpora.COVERED.items():
        action = policy.rule_on(Finding(tenant="local", side="input", category=category, rule="eval")).action
        print(f"| {placeholder} | {action} | {met[placeholder]} | {share(found[placeholder], met[placeholder])} |")
    others = [name for name in met if name not in corpora.COVERED]
    rest = sum(met[name] for name in others)
    print(
        f"| names, addresses, companies and others | no rule | {rest} | {share(sum(found[n] for n in others), rest)} |"
    )
    print(f"\nTexts without any of the above that were masked all the same: {share(wrongly, without)}.")


def kinds_table(results):
    """Print how many attacks of each kind are let through. Only attacks of bastioncorpus have kinds."""
    passed, met = Counter(), Counter()
    for corpus, verdicts in results:
        for sample, verdict in zip(corpus.samples, verdicts, strict=True):
            met.update(sample.kinds)
            passed.update(sample.kinds if verdict.decision != "deny" else ())
    print("| attacks of this kind | let through |\n|---|---|")
    for kind, count in met.most_common():
        print(f"| {kind} | {share(passed[kind], count)} |")


def output_table(policy, results):
    """Print how many texts safety's pattern search (tier 0) would stop or redact if the texts were answers."""
    print("| as answers | texts | stopped | redacted |")
    print("|---|---|---|---|")
    for corpus, _ in results:
        actions = [actions_on(policy, sample.text) for sample in corpus.samples]
        stopped = sum("stop" in each for each in actions)
        redacted = sum("redact" in each for each in actions)
        count = len(actions)
        print(f"| {corpus.name} | {count} | {share(stopped, count)} | {share(redacted, count)} |")


def actions_on(policy, text):
    return {
        policy.rule_on(
            Finding(tenant="local", side="output", category=match.rule.category, rule=match.rule.name)
        ).action
        for match in find_all(policy.automaton, text)
    }


def latency_table(results):
    times = defaultdict(list)
    for _, verdicts in results:
        for verdict in verdicts:
            for rail in verdict.rails:
                if rail.result != "cancelled":
                    times[rail.rail].append(rail.ms)
    print("| rail | runs | p50 ms | p99 ms |")
    print("|---|---|---|---|")
    for name, values in times.items():
        centiles = statistics.quantiles(values, n=100)
        print(f"| {name} | {len(values)} | {centiles[49]:.1f} | {centiles[98]:.1f} |")


async def main():
    parser = argparse.ArgumentParser(prog="python -m tests.eval", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder in which the data packages are installed")
    parser.add_argument("--policy", type=Path, default=Path("policies/default"))
    parser.add_argument(
        "--most", type=int, default=1_000, help="maximum number of texts of each corpus (default: %(default)s)"
    )
    chosen = parser.parse_args()

    from services.rails.evaluator import build_evaluator
    from services.rails.jailbreak import JailbreakClassifier

    policy = unhurried(chosen.policy)
    everything = [*corpora.attacks_and_questions(chosen.folder), corpora.personal(chosen.folder)]
    everything = [corpora.thinned(corpus, chosen.most) for corpus in everything]
    classifier = JailbreakClassifier(1)
    try:
        missing = await classifier.prepare()
        if missing is not None:
            raise SystemExit(missing)
        judge = await build_evaluator(policy, classifier, None, None)
        results = [(corpus, await judged(judge, corpus.samples)) for corpus in everything]
        await judge.close()
    finally:
        classifier.close()
    print(f"Policy `{policy.document.name}`; {corpora.versions(chosen.folder)}.\n")
    input_table(policy, results)
    print()
    kinds_table(results)
    print()
    personal_table(policy, *results[-1])
    print()
    output_table(policy, results)
    print()
    latency_table(results)


if __name__ == "__main__":
    asyncio.run(main())
