"""The figures of a run as a table for the terminal, and for docs/benchmarks.md."""

from collections.abc import Sequence

from benchmarks.record import Entry, Machine, Record
from benchmarks.registry import BENCHMARKS, Benchmark
from benchmarks.results import Result, short

BEGIN, END = "<!-- figures: written by python -m benchmarks --docs -->", "<!-- end of figures -->"
MISSED = "## Targets missed"
_MET = {True: "yes", False: "**no**", None: ""}


def terminal_table(record: Record) -> str:
    """Returns the rows of all benchmarks, aligned."""
    head = ("benchmark", "what", "value", "spread", "target", "met", "s")
    rows = [head]
    for name, entry in record.entries.items():
        seconds = f"{entry.seconds:.0f}"
        if entry.results is None:
            rows.append((name, f"failed with exit code {entry.exit_code}", "", "", "", "", seconds))
        elif not entry.results:
            rows.append((name, "printed its own table", "", "", "", "", seconds))
        for number, result in enumerate(entry.results or ()):
            first = number == 0
            met = _MET[result.is_met].strip("*")
            rows.append(
                (name if first else "", result.name, shown(result), result.spread, _target(result), met,
                 seconds if first else "")
            )  # fmt: skip
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def page(old: str, record: Record) -> str:
    """Returns the page with the figures between its two marks written anew; the rest stays.

    Raises:
        ValueError: a mark is missing.
    """
    before, begin, rest = old.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"The page must have the lines {BEGIN} and {END}, between which the figures are written.")
    return f"{before}{BEGIN}\n\n{_machine(record)}\n\n{markdown_table(record)}\n\n{END}{after}"


def markdown_table(record: Record) -> str:
    """Returns the rows of every benchmark, those too that were not run."""
    lines = ["| command | what | figure | spread | target | met |", "| --- | --- | --- | --- | --- | --- |"]
    for benchmark in BENCHMARKS:
        rows = _markdown_rows(benchmark, record.entries.get(benchmark.name))
        lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def missed(record: Record) -> list[tuple[str, Result]]:
    """Returns the figures that miss their target, each with its benchmark."""
    return [
        (name, result)
        for name, entry in record.entries.items()
        for result in entry.results or ()
        if result.is_met is False
    ]


def unexplained(text: str, record: Record) -> list[tuple[str, Result]]:
    """Returns the figures that miss their target and of which the page does not say why."""
    reasons = text.partition(MISSED)[2]
    return [(name, result) for name, result in missed(record) if f"**{result.name}**" not in reasons]


def shown(result: Result) -> str:
    """Returns value and unit."""
    return f"{short(result.value)} {result.unit}".strip()


def _markdown_rows(benchmark: Benchmark, entry: Entry | None) -> list[Sequence[str]]:
    if entry is None:
        return [(f"`python -m benchmarks.{benchmark.name}`", f"{benchmark.about}: not in this run", "", "", "", "")]
    command = f"`{entry.command}`, {entry.seconds:.0f} s"
    if entry.results is None:
        return [(command, f"{benchmark.about}: failed with exit code {entry.exit_code}", "", "", "", "")]
    if not entry.results:
        return [(command, f"{benchmark.about}: prints its own table", "", "", "", "")]
    return [
        (
            command if number == 0 else "",
            result.name,
            shown(result),
            result.spread,
            _target(result),
            _MET[result.is_met],
        )
        for number, result in enumerate(entry.results)
    ]


def _target(result: Result) -> str:
    return result.target.replace("<= ", "at most ").replace(">= ", "at least ").replace("== ", "exactly ")


def _machine(record: Record) -> str:
    machine: Machine = record.machine
    entries = list(record.entries.values())
    dates = sorted({entry.date[:10] for entry in entries})
    loads = [entry.load for entry in entries]
    commits = list(dict.fromkeys(entry.commit for entry in sorted(entries, key=lambda entry: entry.date)))
    code = f"commit {commits[0]}" if len(commits) == 1 else f"commits {commits[0]} to {commits[-1]}"
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    return (
        f"{machine.cpu}, {machine.cores} cores, {machine.memory_gib} GiB; {machine.system}, Python "
        f"{machine.python}, torch {machine.torch}; {when}, {code}; load when each began "
        f"{min(loads):.1f} to {max(loads):.1f}."
    )
