"""Runs the Python code in the documents, and the tutorial."""

import pathlib
import re
import subprocess
import sys

import pytest

PACKAGE = pathlib.Path(__file__).parents[1]
GUIDE = PACKAGE.parents[1] / "docs" / "guide" / "src" / "languages" / "python.md"


@pytest.mark.parametrize("document", [PACKAGE / "README.md", GUIDE], ids=lambda path: path.name)
def test_the_programs_of_a_document_run(document, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", document.read_text(), re.DOTALL | re.MULTILINE)
    assert blocks
    names = {"__name__": document.name}
    for block in blocks:
        exec(compile(block, document.name, "exec"), names)


def test_the_tutorial_runs(tmp_path):
    program = PACKAGE / "examples" / "tutorial.py"
    done = subprocess.run([sys.executable, program, tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "SNOWMAN: ☃ SNOWMAN, ⛄ SNOWMAN WITHOUT SNOW, ⛇ BLACK SNOWMAN" in done.stdout
    assert done.stdout.splitlines()[-1] == "restored and verified"
