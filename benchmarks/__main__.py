"""Runs benchmarks one after another, each in a process of its own, and prints one table.

    python -m benchmarks                             all but those that must be named; from the project's root
    python -m benchmarks psnr judge --json out.json  these two; their entries in out.json are replaced
    python -m benchmarks --quick                     fewer rounds and rows: about fifteen minutes on two cores
    python -m benchmarks --list
    python -m benchmarks --docs docs/benchmarks.json writes the table of docs/benchmarks.md from a file of figures

A benchmark that fails does not stop the others. The exit code is 1 if one failed or a target was missed.
"""

import argparse
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.record import ROOT, Entry, Record, commit, earlier_entries, read_record, this_machine, write_record
from benchmarks.registry import BENCHMARKS, Benchmark, named
from benchmarks.results import Result, read_results
from benchmarks.tables import missed, page, terminal_table, unexplained

PAGE = ROOT / "docs" / "benchmarks.md"
LONGEST_S = 1800.0
"""A benchmark that takes longer is ended."""


def main() -> int:
    """Does what the arguments ask for; returns the exit code."""
    asked = parser().parse_args()
    if asked.list:
        for each in BENCHMARKS:
            print(f"{each.name:15} {each.about}{'; only if named' if each.is_asked_for else ''}")
        return 0
    try:
        if asked.docs is not None:
            return write_page(asked.docs)
        if asked.json is not None and (asked.json.is_dir() or not os.access(asked.json.parent, os.W_OK)):
            raise ValueError(f"{asked.json} cannot be written. Give --json a file in a folder that exists.")
        return run_all(named(asked.names), asked.json, is_quick=asked.quick)
    except OSError as error:
        print(f"{error.filename}: {error.strerror}. Give --docs or --json a file of figures.", file=sys.stderr)
        return 2
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2


def parser() -> argparse.ArgumentParser:
    """Returns the runner's arguments."""
    arguments = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("names", nargs="*", metavar="NAME", help="which benchmarks; see --list")
    arguments.add_argument("--json", type=Path, metavar="FILE", help="keep the figures here, beside those it has")
    arguments.add_argument("--quick", action="store_true", help="fewer rounds and rows")
    arguments.add_argument("--list", action="store_true", help="name the benchmarks and run none")
    arguments.add_argument("--docs", type=Path, metavar="FILE", help="write the docs' table from FILE and run none")
    return arguments


def run_all(benchmarks: tuple[Benchmark, ...], json_path: Path | None, *, is_quick: bool) -> int:
    """Runs the benchmarks, writing the file after each; prints the table and returns the exit code.

    Raises:
        ValueError: the file is of another machine.
    """
    machine = this_machine()
    before = earlier_entries(json_path, machine)
    done: dict[str, Entry] = {}
    for benchmark in benchmarks:
        print(f"\n== {benchmark.name}: {benchmark.about}", flush=True)
        done[benchmark.name] = run(benchmark, benchmark.quick if is_quick else benchmark.arguments)
        if json_path is not None:
            write_record(json_path, Record(machine, before | done))
    record = Record(machine, done)
    print(f"\n{terminal_table(record)}")
    return 1 if missed(record) or any(entry.results is None for entry in done.values()) else 0


def run(benchmark: Benchmark, arguments: tuple[str, ...]) -> Entry:
    """Runs one benchmark from the project's root; what it prints is seen."""
    module = f"benchmarks.{benchmark.name}"
    started, date, load = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds"), os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        json_path = Path(folder) / "results.json"
        keeping = ["--json", str(json_path)] if benchmark.has_figures else []
        exit_code = waited_for([sys.executable, "-m", module, *arguments, *keeping])
        results = found(json_path) if benchmark.has_figures or exit_code else ()
    return Entry(
        command=shlex.join(["python", "-m", module, *arguments]),
        results=results,
        exit_code=exit_code,
        seconds=round(time.monotonic() - started, 1),
        date=date,
        commit=commit(),
        load=round(load, 2),
    )


def waited_for(command: list[str]) -> int:
    """Returns the exit code of a command, which is ended with all it started if it takes too long."""
    environment = {"OMP_NUM_THREADS": "1"} | dict(os.environ)
    process = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)
    try:
        return process.wait(LONGEST_S)
    except subprocess.TimeoutExpired:
        print(f"{command[2]} is ended: it has taken {LONGEST_S:.0f} s", file=sys.stderr)
        return -signal.SIGKILL
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def found(json_path: Path) -> tuple[Result, ...] | None:
    """Returns the figures that a benchmark left, None if it came to no end."""
    return tuple(read_results(json_path)) if json_path.exists() else None


def write_page(json_path: Path) -> int:
    """Writes the table of the page, and says of which missed target it gives no reason.

    Raises:
        ValueError: the file holds no figures, or the page has no place for them.
    """
    record = read_record(json_path)
    text = page(PAGE.read_text(encoding="utf-8"), record)
    PAGE.write_text(text, encoding="utf-8")
    missing = unexplained(text, record)
    for name, result in missing:
        print(f"{PAGE.name} does not say why {name} misses its target: **{result.name}**", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
