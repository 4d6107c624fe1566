"""What an evaluation of the toy editor takes an item: alone and in batches, encoded before or not, few items and many.

    python -m benchmarks.evaluation                       five minutes on one core

The hook of ``eval=scenes`` edits scenes of 64x64 by the stock pipeline, 8 steps, and has them judged by rules, measured
and reported, in a fresh folder each time. CPU time of the process, one thread, by number of items; rounds are in turns,
and a figure is the least of its rounds. Encodings are kept where an earlier checkpoint left them: in memory, or on the
disk for a process that starts anew. The toy's encoders are small beside its denoiser; the released models' are not.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.results import Result, add_json_option, report, spread_of
from physedit.data_loaders.scenes.write import ensure_world
from physedit.eval_hooks.hook import Cadence, EvalContext
from physedit.eval_hooks.judges.pixel_rules import PixelRuleJudge
from physedit.eval_hooks.picabench.hook import PicaBenchHook
from physedit.eval_hooks.picabench.scene_measures import SceneMeasures
from physedit.models.flux_kontext import FluxKontext

FEW, MANY = 50, 200
BATCH = 50
STEPS = 8


@dataclass(frozen=True, slots=True)
class Way:
    """How a number of items is evaluated; ``before`` is done to the editor first."""

    name: str
    num_items: int
    batch_size: int
    keep_on_disk: bool = False
    before: Callable[[FluxKontext], None] = FluxKontext.forget


WAYS = (
    Way("one at a time", FEW, 1),
    Way("batches of 50", FEW, BATCH),
    Way("batches of 50, encodings in memory", FEW, BATCH, before=lambda _editor: None),
    Way("batches of 50, encodings on disk", FEW, BATCH, keep_on_disk=True),
    Way("batches of 50, 200 items", MANY, BATCH),
)


def main() -> None:
    """Prints a line for each way and round, and what they come to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    add_json_option(parser)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    editor = FluxKontext(weights="toy", dtype="float32", area_px=64 * 64, max_text_tokens=24, edit_guidance=2.5)
    found: dict[str, list[float]] = {way.name: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        ensure_world(work / "world", num_train=8, num_benchmark=MANY, seed=5)
        evaluate(editor, Way("first", 8, 8, keep_on_disk=True), work, "warm")
        for number in range(asked.rounds):
            for way in WAYS:
                if way.keep_on_disk and number == 0:
                    evaluate(editor, way, work, "fills the disk")
                took_s = evaluate(editor, way, work, f"round {number}")
                found[way.name].append(1e3 * took_s / way.num_items)
                print(f"{way.name}: {found[way.name][-1]:.1f} ms of CPU time an item", flush=True)
    report(results_of(found), asked.json)


def evaluate(editor: FluxKontext, way: Way, work: Path, name: str) -> float:
    """Evaluates the base in a folder of its own, and returns the CPU seconds."""
    hook = PicaBenchHook(
        name="scenes",
        benchmark=str(work / "world" / "benchmark"),
        judge=PixelRuleJudge(),
        cadence=Cadence(),
        measures=SceneMeasures(),
        num_steps=STEPS,
        batch_size=way.batch_size,
        limit=way.num_items,
        keep_encoded=way.keep_on_disk,
    )
    place = work / way.name / name
    context = EvalContext(
        step=0,
        backbone=editor,
        denoiser=editor.denoiser,
        without_adapter=nullcontext,
        run_folder=place / "run",
        base_cache=work / "kept" if way.keep_on_disk else place / "cache",
    )
    way.before(editor)
    started = time.process_time()
    made = hook.run(context)
    took_s = time.process_time() - started
    assert made.num_unscored == 0
    if way.keep_on_disk:  # the base's evaluation is not to be taken from the last round
        for path in (work / "kept").iterdir():
            if path.name != "encoded":
                path.rename(place / path.name)
    return took_s


def results_of(found: dict[str, list[float]]) -> list[Result]:
    """Returns milliseconds an item by each way, and how they stand to each other."""
    alone, batched, memory, disk, many = (min(found[way.name]) for way in WAYS)
    results = [
        Result(f"an item edited and judged, {name}", min(values), "ms of CPU", "", spread_of(values, "rounds"))
        for name, values in found.items()
    ]
    growth = Result(f"an item of {MANY} over an item of {FEW}, batches of 50", many / batched, "times", "<= 1.1")
    print(f"{growth.name}: {growth.value:.2f}")
    return [
        *results,
        Result("an item in batches of 50 over an item alone", batched / alone, "times", "<= 1"),
        Result("an item with encodings in memory over one without", memory / batched, "times", "<= 1"),
        Result("an item with encodings on disk over one without", disk / batched, "times", "<= 1.05"),
        growth,
    ]


if __name__ == "__main__":
    main()
