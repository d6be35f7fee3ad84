"""Generate the reference page of error codes."""

import ast

from infra.docs.discover import constant, sources
from infra.docs.tables import code, table


def body() -> str:
    rows = (
        (code(name), ", ".join(map(str, known.statuses)), known.meaning, known.remedy)
        for name, known in sorted(constant("ERROR_CODES").items())
    )
    return table(("code", "status", "what happened", "what to do"), rows)


def raised() -> set[tuple[int, str]]:
    """Return all pairs of HTTP status and error code in the edge's source."""
    found: set[tuple[int, str]] = set()
    for module, tree, _ in sources():
        if module.startswith("services.edge"):
            for node in ast.walk(tree):
                found |= _made(node) | _paired(node)
        elif module == "services.runtime.chat_body":  # the edge answers its errors with 400
            for node in ast.walk(tree):
                found |= {(400, text) for text in _codes(node, "BadBody", "invalid_value")}
    return found


def _made(node: ast.AST) -> set[tuple[int, str]]:
    if not isinstance(node, ast.Call) or not node.args:
        return set()
    status = getattr(node.args[0], "value", None)
    return {(status, text) for text in _texts(node)} if isinstance(status, int) else set()


def _codes(node: ast.AST, error: str, default: str) -> set[str]:
    if not isinstance(node, ast.Call) or getattr(node.func, "id", "") != error:
        return set()
    return _texts(node) or {default}


def _texts(call: ast.Call) -> set[str]:
    return {
        part.value
        for keyword in call.keywords
        if keyword.arg == "code"
        for part in ast.walk(keyword.value)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    }


def _paired(node: ast.AST) -> set[tuple[int, str]]:
    values = [getattr(each, "value", None) for each in node.elts] if isinstance(node, ast.Tuple) else []
    match values:
        case [int(status), str(text)] if 400 <= status < 600:
            return {(status, text)}
    return set()
