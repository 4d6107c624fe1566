"""docs/checks.md lists every claim, and the tests that it names exist."""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "checks.md"
PIPELINE_CLAIMS = {str(number) for number in range(1, 27)}
FAULT_CLAIMS = {f"B{number:02d}" for number in (1, 3, 5, 6, 8, 10, 11, 12, 13, 15, 16, 18, 20, 21, 23, 24)}
READING_CLAIMS = {f"A{number:02d}" for number in (1, 4, 7, 8, 9, 10, 11, 12, 13, 15, 16, 18, 19, 21, 23, 25)} | {
    f"G{number:02d}" for number in (1, 2, 5, 6, 7, 9, 11)
}
PROCESS_CLAIMS = {f"C{number:02d}" for number in (1, 2, 3, 5, 6, 8, 9, 10, 13, 14, 17)}
RESUME_CLAIMS = {f"D{number:02d}" for number in (1, 2, 4, 6, 7, 9, 11, 12, 14, 15, 18)}
CONFIG_CLAIMS = {f"F{number:02d}" for number in (1, 2, 3, 4, 7, 8, 9, 10, 13, 14, 15)}
EVALUATION_CLAIMS = {f"E{number:02d}" for number in (1, 3, 4, 5, 6, 8, 9, 10, 12, 15, 16)} | {
    f"P{number:02d}" for number in (1, 2, 4, 7, 8, 10)
}
NUM_OPEN = 1
"""Claims of which a part is not held; lower it when one is."""
_ROW = re.compile(r"^\| (?P<claim>\d+|[A-GP]\d+) \| (?P<what>[^|]+) \| (?P<rest>[^|]+) \|$", re.MULTILINE)
_TEST = re.compile(r"`(?P<file>tests/[\w/]+\.py)::(?P<name>test_\w+)`")


def sections() -> dict[str, dict[str, str]]:
    """Returns the last column of each row by claim, by heading."""
    parts = re.split(r"^## (.+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    found = {}
    for heading, text in zip(parts[::2], parts[1::2], strict=True):
        matches = list(_ROW.finditer(text))
        assert len(matches) == sum(line.startswith("| ") for line in text.splitlines()) - 1, heading
        found[heading] = {match["claim"]: match["rest"] for match in matches}
        assert len(found[heading]) == len(matches), f"a claim stands twice under {heading}"
    return found


@cache
def functions_of(file: str) -> frozenset[str]:
    """Returns the names of the test functions of a file, which is read and not imported."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def test_no_claim_is_missing() -> None:
    pipelines, faults, reading, processes, resume, configs, evaluation, still_open = sections().values()
    assert pipelines.keys() == PIPELINE_CLAIMS
    assert faults.keys() == FAULT_CLAIMS
    assert reading.keys() == READING_CLAIMS
    assert processes.keys() == PROCESS_CLAIMS
    assert resume.keys() == RESUME_CLAIMS
    assert configs.keys() == CONFIG_CLAIMS
    assert evaluation.keys() == EVALUATION_CLAIMS
    assert still_open.keys() <= PIPELINE_CLAIMS | FAULT_CLAIMS
    assert len(still_open) == NUM_OPEN


def test_every_claim_names_tests_that_exist() -> None:
    pipelines, faults, reading, processes, resume, configs, evaluation, _ = sections().values()
    count = 0
    claims = pipelines | faults | reading | processes | resume | configs | evaluation
    for claim, held_by in claims.items():
        named = [(match["file"], match["name"]) for match in _TEST.finditer(held_by)]
        assert len(named) == held_by.count("::") > 0, f"{claim}: a test is not written as `tests/FILE.py::test_NAME`"
        for file, name in named:
            assert (ROOT / file).is_file(), f"{claim}: no file {file}"
            assert name in functions_of(file), f"{claim}: no {name} in {file}"
            count += 1
        if claim in PROCESS_CLAIMS | RESUME_CLAIMS | EVALUATION_CLAIMS:
            assert any(name.startswith(f"test_{claim.lower()}_") for _, name in named), f"{claim}: no test has its name"
    assert count > 150
