"""The runner finds every benchmark, each takes the runner's option, and the docs' table is what the runner writes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import parser
from benchmarks.record import ROOT, Entry, Machine, Record, earlier_entries, read_record, write_record
from benchmarks.registry import BENCHMARKS, FOLDER, named
from benchmarks.results import Result, read_results, report, short, spread_of
from benchmarks.tables import BEGIN, END, missed, page, terminal_table, unexplained

PAGE, FIGURES = ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "benchmarks.json"
PARTS = {"__init__", "__main__", "record", "registry", "results", "synthetic", "tables"}
"""Modules that measure nothing."""
PRINT_ONLY = {"judge", "step_time"}
"""Those that may hand over no figures."""
MACHINE = Machine("Some CPU", 2, 8, "Linux", "3.11.7", "2.13.0")
SLOW = Result("opening a | door", 1.5, "s", "<= 1.25", "1.4 to 1.6, 3 rounds")


def entry(*results: Result) -> Entry:
    return Entry("python -m benchmarks.psnr", results, 0, 12.3, "2026-01-02T03:04:05+00:00", "abc1234", 0.5)


def test_every_module_that_measures_is_found_by_the_runner() -> None:
    modules = {path.stem for path in FOLDER.glob("*.py")} - PARTS
    assert len(modules) >= 18
    assert {each.name for each in BENCHMARKS} == modules
    assert len(BENCHMARKS) == len(modules)


@pytest.mark.parametrize("name", [each.name for each in BENCHMARKS])
def test_a_benchmark_takes_the_runners_options(name: str) -> None:
    benchmark = named([name])[0]
    source = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    assert benchmark.has_figures or name in PRINT_ONLY
    for option in (*benchmark.arguments, *benchmark.quick):
        assert not option.startswith("--") or f'"{option}"' in source, f"{name} has no {option}"
    assert '__name__ == "__main__"' in source


def test_all_are_those_that_run_unasked() -> None:
    unasked = {each.name for each in named([])}
    assert {"demo", "kills"}.isdisjoint(unasked)
    assert {"psnr", "scaling"} <= unasked
    assert [each.name for each in named(["demo"])] == ["demo"]
    with pytest.raises(ValueError, match="no benchmark psnrr"):
        named(["psnrr"])


@pytest.mark.parametrize("command", [["-m", "benchmarks"], ["-m", "benchmarks.kills"], [str(FOLDER / "kills.py")]])
def test_a_benchmark_starts_as_module_and_as_script_on_a_safe_path(command: list[str], tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONSAFEPATH": "1", "PYTHONPATH": str(ROOT / "src")}
    told = [sys.executable, *command, "--help"]
    done = subprocess.run(told, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--json" in done.stdout


def test_the_runner_understands_its_arguments() -> None:
    asked = parser().parse_args(["psnr", "judge", "--quick", "--json", "out.json"])
    assert asked.names == ["psnr", "judge"]
    assert asked.quick
    assert asked.json == Path("out.json")


def test_figures_come_back_from_their_file(tmp_path: Path) -> None:
    results = [SLOW, Result("a count", 3.0, "")]
    report(results, tmp_path / "results.json")
    assert read_results(tmp_path / "results.json") == results
    report(results, None)
    (tmp_path / "other.json").write_text('[{"name": "a"}]', encoding="utf-8")
    with pytest.raises(ValueError, match="fields"):
        read_results(tmp_path / "other.json")


def test_a_target_decides_whether_it_is_met() -> None:
    assert [Result("a", value, "", "<= 1.25").is_met for value in (1.0, 1.25, 1.26)] == [True, True, False]
    assert [Result("a", value, "", ">= 5").is_met for value in (4.9, 5.0)] == [False, True]
    assert Result("a", 0.0, "", "== 0").is_met is True
    assert Result("a", 0.0, "").is_met is None
    with pytest.raises(ValueError, match="target"):
        Result("a", 1.0, "", "below 2")
    with pytest.raises(ValueError, match="no measurement"):
        Result("a", float("nan"), "")


def test_numbers_are_shown_with_the_digits_that_count() -> None:
    assert [short(value) for value in (0.0123456, 1.2345, 123.456, 12.0, 11901408320.0)] == [
        "0.0123", "1.23", "123", "12", "11901408320",
    ]  # fmt: skip
    assert spread_of([1.5, 1.25], "rounds") == "1.25 to 1.5, 2 rounds"
    assert spread_of([1.5], "rounds") == "1 round"


def test_a_run_completes_the_file_of_an_earlier_one_on_the_same_machine(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    assert earlier_entries(path, MACHINE) == {}
    record = Record(MACHINE, {"psnr": entry(SLOW), "judge": Entry("x", None, 1, 0.1, "2026", "abc", 1.0)})
    write_record(path, record)
    assert read_record(path) == record
    assert earlier_entries(path, MACHINE) == record.entries
    with pytest.raises(ValueError, match="another machine"):
        earlier_entries(path, Machine("Other CPU", 2, 8, "Linux", "3.11.7", "2.13.0"))


def test_the_tables_tell_what_failed_and_what_was_missed() -> None:
    record = Record(MACHINE, {"psnr": entry(SLOW), "judge": Entry("x", None, 3, 0.1, "2026", "abc", 1.0)})
    shown = terminal_table(record)
    assert "failed with exit code 3" in shown
    assert "at most 1.25" in shown
    text = page(f"Head\n{BEGIN}\nold\n{END}\n## Targets missed\n", record)
    assert "old" not in text
    assert "| opening a \\| door | 1.5 s | 1.4 to 1.6, 3 rounds | at most 1.25 | **no** |" in text
    assert missed(record) == [("psnr", SLOW)] == unexplained(text, record)
    assert unexplained(f"{text}\n- **{SLOW.name}**: the door sticks.\n", record) == []
    with pytest.raises(ValueError, match="lines"):
        page("no marks", record)


def test_the_docs_table_names_every_benchmark_and_is_the_one_that_the_runner_writes() -> None:
    text, record = PAGE.read_text(encoding="utf-8"), read_record(FIGURES)
    table = text.partition(BEGIN)[2].partition(END)[0]
    for benchmark in BENCHMARKS:
        assert f"benchmarks.{benchmark.name}" in table
    assert page(text, record) == text, "write it anew: python -m benchmarks --docs docs/benchmarks.json"


def test_the_docs_say_why_a_target_is_missed() -> None:
    assert unexplained(PAGE.read_text(encoding="utf-8"), read_record(FIGURES)) == []
