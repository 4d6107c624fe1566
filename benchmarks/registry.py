"""Every benchmark, in the order in which they run."""

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A module of this folder with a command line.

    Attributes:
        name: of the module, without ``benchmarks.``.
        about: what it measures, in a few words.
        arguments: of a full run.
        quick: of a run with ``--quick``; the same as a full run's where it is short anyway.
        is_asked_for: it runs only if it is named: it takes too long, or needs what is not in the project.
    """

    name: str
    about: str
    arguments: tuple[str, ...] = ()
    quick: tuple[str, ...] = ()
    is_asked_for: bool = False

    @property
    def has_figures(self) -> bool:
        """True if it hands its figures over; else it only prints."""
        return "add_json_option(" in (FOLDER / f"{self.name}.py").read_text(encoding="utf-8")


BENCHMARKS = (
    Benchmark("psnr", "PSNR outside the edit against float32 torch, picture by picture", quick=("--fast-only",)),
    Benchmark("judge", "a slow judge's answers against the ideal time", quick=("--rounds", "2")),
    Benchmark("bookkeeping", "what a question costs besides the judge, from 500 to 4,000 questions"),
    Benchmark("compare", "comparing 5 to 200 runs, and reporting on 900 items", quick=("--rounds", "1")),
    Benchmark("evaluation", "an item edited and judged, alone and in batches", quick=("--rounds", "2")),
    Benchmark("encoded_cache", "reading an encoded pair against encoding it"),
    Benchmark("loader", "the loader against decoding alone", quick=("--epochs", "4", "--rounds", "3")),
    Benchmark("open_set", "opening 105,085 rows against 1,000", quick=("--repeats", "3")),
    Benchmark("load_memory", "memory at its worst while weights are loaded"),
    Benchmark("checkpoints", "size and seconds of checkpoints under each engine", quick=("--rank", "256")),
    Benchmark("refusals", "seconds until a wrong setting is refused"),
    Benchmark("scaling", "samples a second of two processes against one", quick=("--rounds", "2")),
    Benchmark("rule_judge", "how right the rule judge is", quick=("--scenes", "30")),
    Benchmark("toy_base", "what the toy editors get without an adapter", quick=("--scenes", "10")),
    Benchmark("memory_sizes", "parameters and sizes of the released models, computed"),
    Benchmark("sizes", "what common pictures become in each backbone, computed"),
    Benchmark("start_up", "seconds to the first step over imports alone", quick=("--rounds", "3")),
    Benchmark("step_overhead", "a training step against a bare loop over the same modules", quick=("--rounds", "4")),
    Benchmark("step_time", "milliseconds of a training step by part", quick=("--steps", "50")),
    Benchmark("compiled", "steps and calls of compiled blocks over others; compiling", is_asked_for=True),
    Benchmark("from_videos", "examining a video; give videos", is_asked_for=True),
    Benchmark("demo", "the demo against what it promises, six minutes", is_asked_for=True),
    Benchmark("kills", "twenty kills of a process of a run, ten minutes", ("--kills", "20"), is_asked_for=True),
)


def named(names: list[str]) -> tuple[Benchmark, ...]:
    """Returns the benchmarks of these names in their order, or all that run unasked.

    Raises:
        ValueError: no benchmark has one of the names.
    """
    known = {each.name for each in BENCHMARKS}
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"There is no benchmark {', '.join(unknown)}. There are {', '.join(sorted(known))}.")
    return tuple(each for each in BENCHMARKS if (each.name in names if names else not each.is_asked_for))
