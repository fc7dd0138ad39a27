"""The generated pages of the documentation are those that the code gives."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "frontends.md"


REFUSED = {"Noisy"}
"""The modules that no front end takes: it draws random numbers."""


def names(file):
    text = (ROOT / "tests" / "corpus" / file).read_text(encoding="utf-8")
    return re.findall(r"^@(?:case|stream)\(.*\n(?:.*\n)*?class (\w+)", text, re.MULTILINE)


def test_each_module_of_the_corpora_has_its_row():
    rows = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    files = ("cases", "streams", "deployed", "deployed_models", "deployed_control")
    assert rows == [name for file in files for name in names(f"{file}.py")]


def test_nothing_is_wrong_and_registered_buffers_are_right_through_auto():
    text = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| `\w+` \|.*$", text, re.MULTILINE)
    assert not [row for row in rows if "wrong" in row]
    refused = re.findall(r"^\| `(\w+)` .* refuses \|$", text, re.MULTILINE)
    assert set(refused) == REFUSED


@pytest.mark.slow
def test_the_page_of_front_ends_is_what_the_corpora_give():
    script = ROOT / "benchmarks" / "frontends.py"
    command = [sys.executable, "-W", "ignore", str(script), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
