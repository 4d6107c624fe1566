"""The file of a run of the benchmarks: the machine, and for each benchmark its figures and how they were got."""

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.results import Result, as_result

ROOT = Path(__file__).resolve().parents[1]
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Machine:
    """What the figures depend on besides the code; ``cores`` are those this process may use."""

    cpu: str
    cores: int
    memory_gib: int
    system: str
    python: str
    torch: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One benchmark's run.

    Attributes:
        command: what was run, from the project's root.
        results: its figures; None if it failed.
        exit_code: not 0 where it failed, or broke a promise that it holds itself.
        seconds: it took, by the clock.
        date: when it began, UTC.
        commit: of the code, with ``-dirty`` where files differ from it.
        load: processes that ran or waited when it began, averaged over a minute.
    """

    command: str
    results: tuple[Result, ...] | None
    exit_code: int
    seconds: float
    date: str
    commit: str
    load: float


@dataclass(frozen=True, slots=True)
class Record:
    """A machine's runs, by benchmark."""

    machine: Machine
    entries: Mapping[str, Entry]


def this_machine() -> Machine:
    """Returns what this process runs on."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Machine(
        cpu=_cpu(),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(pages / 2**30),
        system=platform.system(),
        python=platform.python_version(),
        torch=version("torch"),
    )


def commit() -> str:
    """Returns the commit of the code, ``unknown`` outside a clone."""
    command = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def write_record(path: Path, record: Record) -> None:
    """Writes the record whole or not at all."""
    entries = {name: asdict(entry) for name, entry in record.entries.items()}
    content = {"format": FORMAT, "machine": asdict(record.machine), "benchmarks": entries}
    part = path.with_name(f".{path.name}.part")
    part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


def read_record(path: Path) -> Record:
    """Returns what ``write_record`` wrote.

    Raises:
        ValueError: the file is none of this format.
    """
    content: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if content.get("format") != FORMAT:
        raise ValueError(f"{path}: expected format {FORMAT}, found {content.get('format')}. Run the benchmarks again.")
    return Record(Machine(**content["machine"]), {name: _entry(each) for name, each in content["benchmarks"].items()})


def earlier_entries(path: Path | None, machine: Machine) -> dict[str, Entry]:
    """Returns the entries of a file that another run is to complete, none without one.

    Raises:
        ValueError: it is of another machine, whose figures do not belong beside these.
    """
    if path is None or not path.exists():
        return {}
    record = read_record(path)
    if record.machine != machine:
        raise ValueError(f"{path} is of another machine ({record.machine}; this is {machine}). Name another file.")
    return dict(record.entries)


def _entry(content: Mapping[str, Any]) -> Entry:
    results = content["results"]
    return Entry(**{**content, "results": None if results is None else tuple(as_result(each) for each in results)})


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
