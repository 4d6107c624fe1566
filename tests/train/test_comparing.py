"""Finding runs to compare: folders, sweeps, wandb's logs and its API; and the verb."""

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import wandb
from tests.eval_hooks.comparing.conftest import write_run
from tests.support.runs import physedit
from tests.support.stand_ins import write_benchmark

from physedit.eval_hooks.comparing.comparison import compare_runs
from physedit.eval_hooks.comparing.runs import CompareError, When
from physedit.launch.sweep_file import Metric
from physedit.launch.sweep_trials import SweepRecord, TrialRecord, TrialState, write_record
from physedit.train import comparing
from physedit.train.comparing import CompareRequest, compare, compare_sweep
from physedit.train.config import ConfigError
from physedit.train.tracker import Wandb
from physedit.train.wandb_runs import Project, offline_files, read_offline_runs, read_project

FILES = {"compare.csv", "compare.json", "compare.md", "compare.html"}
ROWS: list[Mapping[str, float]] = [
    {"trainer/step": 0, "picabench/acc": 0.5, "picabench/acc_delta": 0.0, "picabench/psnr": 30.0,
     "picabench/psnr_delta": 0.0},
    {"trainer/step": 10, "train/loss": 0.25, "time/samples_per_s": 3.0},
    {"trainer/step": 20, "picabench/acc": 0.75, "picabench/acc_delta": 0.25, "picabench/psnr": 28.0,
     "picabench/psnr_delta": -2.0},
    {"trainer/step": 40, "picabench/acc": 0.625, "picabench/acc_delta": 0.125, "picabench/psnr": 29.0,
     "picabench/psnr_delta": -1.0},
]  # fmt: skip


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of three trials, of which the last left no run."""
    root = tmp_path_factory.mktemp("sweep") / "lr"
    benchmark = write_benchmark(root.parent / "bench", 6, targets=True)
    trials = []
    for number, lr in enumerate((1e-4, 4e-3, 1e30), start=1):
        name = f"trial_{number:03d}"
        if lr < 1:
            write_run(root / name, benchmark, only_even=number == 1, settings={"optimizer": {"lr": lr}})
        state = TrialState.FINISHED if lr < 1 else TrialState.FAILED
        trials.append(TrialRecord(name, {"optimizer.lr": lr}, name, f"{name}/launch/trial.log", state, 0))
    write_record(root, SweepRecord("lr", {}, Metric("picabench/acc", "maximize"), 3, tuple(trials)))  # type: ignore[arg-type]
    return root


def test_a_sweep_ends_with_its_comparison(sweep: Path) -> None:
    written, why_not = compare_sweep(sweep)
    assert why_not is None
    assert {path.name for path in written} == FILES
    assert all(path.parent == sweep and path.stat().st_size for path in written)
    record = json.loads((sweep / "compare.json").read_text(encoding="utf-8"))
    assert record["differing"] == ["optimizer.lr"]
    assert [(run["name"], run["state"]) for run in record["runs"]] == [
        ("trial_001", "finished"),
        ("trial_002", "finished"),
    ]
    assert "Trials of lr that left no run: trial_003." in record["notes"]


def test_a_sweep_without_plotly_has_its_tables_and_says_what_lacks(
    sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise CompareError("compare.html needs plotly")

    monkeypatch.setattr(comparing, "check_page_can_be_made", missing)
    copy = shutil.copytree(sweep, tmp_path / "lr", ignore=shutil.ignore_patterns("compare.*"))
    written, why_not = compare_sweep(copy)
    assert {path.name for path in written} == FILES - {"compare.html"}
    assert why_not == "compare.html needs plotly"


def test_a_sweep_of_which_nothing_is_left_does_not_fail(tmp_path: Path) -> None:
    write_record(tmp_path, SweepRecord("none", {}, None, 0))
    written, why_not = compare_sweep(tmp_path)
    assert written == []
    assert why_not is not None
    assert "No trial" in why_not


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.mkdir(), "neither a run folder"),
        (lambda path: (path / "inner" / "eval").mkdir(parents=True), "It holds run folders, such as"),
    ],
)
def test_what_cannot_be_compared_is_named(tmp_path: Path, make, named: str) -> None:
    make(tmp_path / "x")
    with pytest.raises(CompareError, match=named):
        compare(CompareRequest((tmp_path / "x",), out=tmp_path / "out"))


def _nowhere(place: Path) -> None:
    place.symlink_to(place.parent / "gone" / "away")


BAD_PLACES = {
    "a file": (lambda place: place.write_text("x"), "", "is no folder that can be"),
    "below a file": (lambda place: place.write_text("x"), "in", "is no folder that can be"),
    "a link to nothing": (_nowhere, "", "is a link to nothing"),
    "below a link to nothing": (_nowhere, "in", "is a link to nothing"),
    "a folder in a file's place": (lambda place: (place / "compare.csv").mkdir(parents=True), "", "is a folder"),
    "a name too long": (lambda place: place.mkdir(), "x" * 300, "name too long"),
}


@pytest.mark.parametrize(("make", "below", "named"), BAD_PLACES.values(), ids=BAD_PLACES)
@pytest.mark.parametrize("source", ["folders", "wandb"])
def test_a_place_that_cannot_be_written_is_refused_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, make, below: str, named: str
) -> None:
    def read(*_arguments: object, **_more: object) -> list[object]:
        raise AssertionError("nothing may be read")

    for name in ("_runs_at", "read_project"):
        monkeypatch.setattr(comparing, name, read)
    make(tmp_path / "place")
    paths, project = ((tmp_path,), None) if source == "folders" else ((), Project("team/physics"))
    with pytest.raises(ConfigError, match=f"(?i)--out .* cannot be written: .*{named}.* Choose another"):
        compare(CompareRequest(paths, project, out=tmp_path / "place" / below))


def test_the_verb_refuses_a_bad_place_with_2_and_one_paragraph(sweep: Path, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("x", encoding="utf-8")
    done = physedit("compare", str(sweep / "trial_001"), str(sweep / "trial_002"), "--out", str(tmp_path / "notes"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"physedit: --out {tmp_path / 'notes'} cannot be written")
    assert done.stderr.count("\n") == 1


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run folder with an offline run of wandb that went on once, written by the tracker."""
    folder = tmp_path_factory.mktemp("tracked") / "run"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_SILENT", "true")
        for rows in (ROWS[:3], ROWS[3:]):
            tracker = Wandb()
            tracker.start(folder, "tracked", {"optimizer": {"lr": 2.0}, "best_metric": "picabench/acc",
                                              "eval": {"picabench": {"level": "explicit"}}})  # fmt: skip
            for row in rows:
                tracker.log(int(row["trainer/step"]), {k: v for k, v in row.items() if k != "trainer/step"})
            tracker.finish({}, exit_code=0)
        yield folder


def test_an_offline_run_is_read_by_wandbs_own_reader_and_parts_of_one_run_are_one(tracked: Path) -> None:
    files = offline_files(tracked / "wandb")
    assert len(files) == 2
    (run,) = read_offline_runs(files)
    assert (run.name, run.state, run.settings["optimizer.lr"]) == ("tracked", "finished", 2)
    evaluation = run.evaluations["picabench"]
    assert (evaluation.step, evaluation.configured) == (40, {"level": "explicit"})
    change = evaluation.metrics["picabench/acc"]
    assert (change.base, change.tuned, change.change, change.ci95) == (0.5, 0.625, 0.125, None)
    assert run.curves["picabench/acc"] == ((0, 0.5), (20, 0.75), (40, 0.625))
    assert run.curves["train/loss"] == ((10, 0.25),)
    assert not any(key.startswith(("time/", "trainer/")) or "_delta" in key for key in run.curves)
    assert read_offline_runs(files, when=When.BEST)[0].evaluations["picabench"].step == 20


def test_an_offline_run_can_be_compared(tracked: Path, tmp_path: Path) -> None:
    comparison, _ = compare(CompareRequest((tracked / "wandb",), out=tmp_path, page=False))
    (hook,) = comparison.hooks
    assert (hook.headline, hook.psnr, comparison.tests) == ("picabench/acc", "picabench/psnr", ())


def test_a_damaged_log_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.wandb").write_bytes(b"no log")
    with pytest.raises(ConfigError, match=r"x\.wandb"):
        read_offline_runs([tmp_path / "x.wandb"])


@dataclass
class ApiRun:
    """What wandb's API gives of a run."""

    name: str
    job_type: str = "train"
    state: str = "finished"
    path: tuple[str, ...] = ("team", "physics", "abc")
    config: dict[str, object] = field(default_factory=lambda: {"optimizer": {"lr": 1.0}, "_wandb": {}})

    def scan_history(self) -> Iterator[Mapping[str, Any]]:
        yield from ROWS


def serve(monkeypatch: pytest.MonkeyPatch, answer: object) -> None:
    class Api:
        def __init__(self, timeout: int) -> None:
            assert timeout > 0

        def runs(self, path: str, order: str, **_chosen: object) -> object:
            assert (path, order) == ("team/physics", "+created_at")
            if isinstance(answer, Exception):
                raise answer
            return answer

    monkeypatch.setattr(wandb, "Api", Api)


def test_runs_of_a_project_are_read_over_the_api(monkeypatch: pytest.MonkeyPatch) -> None:
    serve(
        monkeypatch, [ApiRun("one"), ApiRun("judged", job_type="base"), ApiRun("two", config={"optimizer": {"lr": 2}})]
    )
    runs = read_project(Project("team/physics"))
    assert [(run.name, run.settings) for run in runs] == [("one", {"optimizer.lr": 1.0}), ("two", {"optimizer.lr": 2})]
    assert runs[0].place == "team/physics/abc"
    assert compare_runs(runs).differing == ("optimizer.lr",)


@pytest.mark.parametrize("error", [ConnectionError("no route"), wandb.errors.CommError("403"), ValueError("not found")])
def test_a_server_that_does_not_answer_is_one_paragraph(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    serve(monkeypatch, error)
    with pytest.raises(ConfigError, match=r"gave no answer \(\w+: .*wandb login.*offline runs"):
        read_project(Project("team/physics"))


def test_a_project_without_runs_and_a_wrong_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, [])
    with pytest.raises(ConfigError, match="no training run"):
        read_project(Project("team/physics"))
    with pytest.raises(ConfigError, match="expected ENTITY/PROJECT"):
        read_project(Project("physics"))


def test_the_verb_prints_tables_writes_files_and_refuses_with_2(sweep: Path, tmp_path: Path) -> None:
    done = physedit("compare", str(sweep / "trial_001"), str(sweep / "trial_002"), "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert "trial_002 against trial_001" in done.stdout
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES
    nothing = physedit("compare")
    assert (nothing.returncode, nothing.stdout) == (2, "")
    assert "nothing to compare" in nothing.stderr
    assert "Traceback" not in nothing.stderr
