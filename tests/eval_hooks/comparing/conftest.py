"""Two small runs, evaluated by the hook itself: one adapter paints on even items, the other on all."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from tests.support.stand_ins import PaintingEditor, RedJudge, context_for, write_benchmark

from physedit.eval_hooks.files import write_json, write_json_lines, write_text
from physedit.eval_hooks.hook import Cadence
from physedit.eval_hooks.picabench.hook import PicaBenchHook

NUM_ITEMS = 12


def write_run(
    folder: Path,
    benchmark: Path,
    *,
    only_even: bool,
    settings: Mapping[str, object],
    num_steps: int = 1,
    judge_id: str = "red-judge",
    level: str = "superficial",
) -> Path:
    hook = PicaBenchHook(
        name="picabench",
        benchmark=str(benchmark),
        judge=RedJudge(judge_id=judge_id, note="A rule <not a model> answers."),
        cadence=Cadence(),
        num_steps=num_steps,
        level=level,
    )
    editor = PaintingEditor(only_even=only_even)
    for step in (0, 200, 400):
        hook.run(context_for(editor, folder, step=step))
    evaluation = {"num_steps": num_steps, "level": level, "judge": {"model": judge_id}, "seed": 0, "guidance": None}
    config = {"run_name": folder.name, "best_metric": "picabench/acc", "eval": {"picabench": evaluation}, **settings}
    write_text(folder / "config.yaml", yaml.safe_dump(config))
    write_json_lines(folder / "metrics.jsonl", [{"step": s, "train/loss": 1 / s, "time/s": 1.0} for s in (100, 200)])
    write_json(folder / "summary.json", {"best": {"step": 200}, "failed_evaluations": []})
    return folder


@pytest.fixture(scope="session")
def benchmark(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_benchmark(tmp_path_factory.mktemp("bench") / "bench", NUM_ITEMS, targets=True)


@pytest.fixture(scope="session")
def folders(benchmark: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("runs")
    same: dict[str, object] = {"global_batch": 8, "backbone": {"weights": "toy"}}
    return (
        write_run(
            root / "even",
            benchmark,
            only_even=True,
            settings={**same, "optimizer": {"lr": 1e-4}, "adapter": {"rank": 8}},
        ),
        write_run(
            root / "all",
            benchmark,
            only_even=False,
            settings={**same, "optimizer": {"lr": 4e-3}, "adapter": {"rank": 8}},
        ),
    )
