"""Test that the example client in schemas/README.md runs unchanged. It uses no code of Railbus."""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "schemas" / "README.md"


def test_the_documented_client_gets_its_answer(tree, tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    assert "railbus" in code
    assert "schemas" not in code.replace("railbus.", "")
    program = tmp_path / "client.py"
    program.write_text(code)
    done = subprocess.run(
        [sys.executable, program, tree.kafka], capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    text, outcome = done.stdout.rstrip("\n").rsplit("\n", 1)
    assert outcome == "completed"
    assert len(text.split()) == 16
