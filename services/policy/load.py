import json
from pathlib import Path
from typing import Any

from services.policy.engines.rego import Rego
from services.policy.errors import BrokenPolicy, PolicyFault, broken_by
from services.policy.matching import Automaton, Rule
from services.policy.matching.folding import MIN_FOLDED, FoldedWords, fold
from services.policy.matching.regex import BadPattern, Node, longest, parse, words
from services.policy.policy import ENTRY_POINTS, Policy
from services.policy.source.depth import data_depth_fault, rego_depth_fault
from services.policy.source.document import PatternFile, PatternSpec, PolicyDocument
from services.policy.source.files import Files, read_files, version_of
from services.policy.source.nemo_config import yaml_faults
from services.policy.source.toml import line_of, read_toml


def load(root: Path) -> Policy:
    """Load the policy in this folder.

    Raises:
        BrokenPolicy: The files have faults. The error lists all of them.
    """
    return build(read_files(root))


def build(files: Files) -> Policy:
    """Build a policy from the content of its files.

    Raises:
        BrokenPolicy: The files have faults. The error lists all of them.
    """
    try:
        return _build(files)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a parser raises, a service keeps the policy that it has
        raise broken_by(error) from None


def _build(files: Files) -> Policy:
    faults: list[PolicyFault] = []
    document = _document(files, faults)
    rules, folded = _rules(files, faults)
    faults += yaml_faults(files)
    rego = _rego(files, faults)
    if faults or document is None or rego is None:
        raise BrokenPolicy(sorted(faults))
    return Policy(
        version=version_of(files),
        document=document,
        classes=document.service_classes(),
        rules=rules,
        automaton=Automaton(rules),
        folded=FoldedWords(folded),
        rego=rego,
        files=files,
        _rulings={},
    )


def _document(files: Files, faults: list[PolicyFault]) -> PolicyDocument | None:
    if "policy.toml" not in files:
        faults.append(PolicyFault("policy.toml", 0, "is missing; it names the policy, its rails and its texts"))
        return None
    try:
        document = read_toml("policy.toml", files["policy.toml"], PolicyDocument)
    except BrokenPolicy as broken:
        faults.extend(broken.faults)
        return None
    text = files["policy.toml"].decode()
    for table, keys in (("refusals", ("default",)), ("replacements", ("default", "stop"))):
        missing = [key for key in keys if key not in getattr(document, table)]
        faults.extend(
            PolicyFault("policy.toml", line_of(text, f"$.{table}"), f"{table} needs {key!r}") for key in missing
        )
    names = [rail.name for rail in document.rails.rail]
    faults.extend(
        PolicyFault("policy.toml", line_of(text, f"$.rails.rail[{index}]"), f"rail {name!r} is named twice")
        for index, name in enumerate(names)
        if name in names[:index]
    )
    return document


def _rules(files: Files, faults: list[PolicyFault]) -> tuple[tuple[Rule, ...], list[tuple[str, str, str]]]:
    rules: dict[str, Rule] = {}
    folded: list[tuple[str, str, str]] = []
    for name in _named(files, "patterns/", ".toml"):
        try:
            specs = read_toml(name, files[name], PatternFile).pattern
        except BrokenPolicy as broken:
            faults.extend(broken.faults)
            continue
        text = files[name].decode()
        for index, spec in enumerate(specs):
            where = f"$.pattern[{index}]"
            try:
                rule = rule_of(spec)
            except BadPattern as error:
                field = "words" if spec.words else "regex"
                faults.append(PolicyFault(name, line_of(text, f"{where}.{field}"), f"{spec.name}: {error}"))
                continue
            if spec.name in rules:
                faults.append(
                    PolicyFault(name, line_of(text, where), f"{spec.name}: the name is taken by another pattern")
                )
            rules[spec.name] = rule
            if spec.folded:
                folded.extend((spec.name, spec.category, word) for word in spec.words)
    return tuple(rules[name] for name in sorted(rules)), folded


def rule_of(spec: PatternSpec) -> Rule:
    """Convert a pattern to a rule that can be matched.

    Raises:
        BadPattern: The pattern is refused, for example because a match can be longer than ``max_chars``.
    """
    node = _node(spec)
    if spec.folded:
        _check_folded(spec)
    bound = longest(node)
    if bound > spec.max_chars:
        raise BadPattern(f"a match can be {bound} characters long, above its max_chars = {spec.max_chars}")
    rule = Rule(name=spec.name, category=spec.category, node=node, guard=spec.guard, validator=spec.validator)
    Automaton([rule])  # here, so that a fault of too many positions has this pattern's line
    return rule


def _check_folded(spec: PatternSpec) -> None:
    short = [word for word in spec.words if len(fold(word)) < MIN_FOLDED]
    if short or not spec.words:
        what = f"{short[0]!r} folds to {len(fold(short[0]))} letters" if short else "it has no words"
        raise BadPattern(f"{what}; folded needs words of at least {MIN_FOLDED}")


def _node(spec: PatternSpec) -> Node:
    if (spec.regex is None) == (not spec.words):
        raise BadPattern("it needs either a regex or words")
    if spec.regex is not None:
        return parse(spec.regex, ignore_case=spec.ignore_case)
    return words(spec.words, ignore_case=spec.ignore_case)


def _rego(files: Files, faults: list[PolicyFault]) -> Rego | None:
    modules: dict[str, str] = {}
    for name in _named(files, "rego/", ".rego"):
        try:
            modules[name] = files[name].decode()
        except UnicodeDecodeError as error:
            line = files[name][: error.start].count(b"\n") + 1
            faults.append(PolicyFault(name, line, "is not UTF-8 text"))
    data = _data(files, faults)
    too_deep = [fault for name, text in modules.items() if (fault := rego_depth_fault(name, text)) is not None]
    faults.extend(too_deep)
    if too_deep:
        return None  # compiling it could take for ever
    try:
        return Rego(modules, data, ENTRY_POINTS)
    except BrokenPolicy as broken:
        faults.extend(broken.faults)
        return None


def _data(files: Files, faults: list[PolicyFault]) -> Any:
    name = "rego/data.json"
    try:
        text = files.get(name, b"{}").decode()
        too_deep = data_depth_fault(name, text)
        if too_deep is not None:
            faults.append(too_deep)
            return {}
        data = json.loads(text)
    except json.JSONDecodeError as error:
        faults.append(PolicyFault(name, error.lineno, error.msg))
        return {}
    except UnicodeDecodeError:
        faults.append(PolicyFault(name, 0, "is not UTF-8 text"))
        return {}
    if not isinstance(data, dict) or "railbus" in data:
        faults.append(
            PolicyFault(name, 1, "must be an object without a 'railbus' of its own: that is where the modules are")
        )
        return {}
    return data


def _named(files: Files, prefix: str, suffix: str) -> list[str]:
    return [name for name in sorted(files) if name.startswith(prefix) and name.endswith(suffix)]
