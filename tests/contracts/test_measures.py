"""What every set of measures that an evaluation option names promises, and every metric in it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

import physedit.conf
from physedit.data_loaders.scenes.scene import LAWS, draw_scene
from physedit.eval_hooks.compare import pair_records
from physedit.eval_hooks.metrics.metric import Answer, ItemRecord, ratio_of_sums
from physedit.eval_hooks.picabench.measures import Measures, PicaBenchMeasures, changes_of, scores_of
from physedit.train.build import build

SCENES = [draw_scene(law, seed) for law in LAWS for seed in range(2)]


def found_in_conf() -> dict[str, Callable[[], Measures]]:
    """The measures of every hook of every evaluation option; null stands for PICABench's own."""
    found: dict[str, Callable[[], Measures]] = {"null": PicaBenchMeasures}
    for file in sorted((Path(physedit.conf.__file__).parent / "eval").glob("*.yaml")):
        option = OmegaConf.load(file)
        assert isinstance(option, DictConfig)
        for hook, node in option.items():
            if isinstance(node, DictConfig) and node.get("measures") is not None:
                found[f"{file.stem}.{hook}"] = lambda node=node: build(node.measures)
    return found


def all_hooks() -> list[str]:
    """The names of the hooks of every evaluation option."""
    files = (Path(physedit.conf.__file__).parent / "eval").glob("*.yaml")
    loaded = [OmegaConf.load(file) for file in files]
    return [str(hook) for option in loaded if isinstance(option, DictConfig) for hook in option]


OPTIONS = found_in_conf()


def record(measures: Measures, index: int) -> ItemRecord:
    scene = SCENES[index]
    answers = tuple(
        Answer(number, q.text, q.answer, measures.kind_of(q.text), "yes", (index + number) % 2 == 0, "Yes", "")
        for number, q in enumerate(scene.questions)
    )
    area = bool(scene.edit_areas)
    return ItemRecord(
        index,
        scene.category,
        scene.law,
        scene.operation,
        "superficial",
        answers,
        20.0 + index,
        has_edit_area=area,
        psnr_512_db=21.0 + index,
    )


@pytest.fixture(params=OPTIONS)
def measures(request: pytest.FixtureRequest) -> Measures:
    return OPTIONS[request.param]()


@pytest.fixture
def records(measures: Measures) -> list[ItemRecord]:
    return [record(measures, index) for index in range(len(SCENES))]


def without_answers(records: Sequence[ItemRecord]) -> list[ItemRecord]:
    return [
        replace(
            r,
            psnr_db=None,
            psnr_512_db=None,
            answers=tuple(replace(a, verdict="unparsed", correct=None) for a in r.answers),
        )
        for r in records
    ]


def test_every_option_is_found() -> None:
    assert {"null", "scenes.scenes"} <= OPTIONS.keys()
    assert {"picabench", "picabench_quick"} <= set(all_hooks()), "their measures are null"
    assert len({make().measures_id for make in OPTIONS.values()}) >= 2


def test_keys_begin_with_the_hook_and_the_headline_stands_first(measures: Measures, records: list[ItemRecord]) -> None:
    keys = list(measures.by_key("hook", records))
    assert all(key.startswith("hook/") for key in keys)
    headline = keys[0]
    assert headline.count("/") == 1
    assert {f"{headline}/{law}" for law in LAWS} <= set(keys)
    assert keys == list(measures.by_key("hook", records))


def test_a_metric_is_the_ratio_of_what_its_items_add_in_any_order(
    measures: Measures, records: list[ItemRecord]
) -> None:
    for measure in measures.by_key("hook", records).values():
        mine = [r for r in records if measure.applies(r)]
        assert mine
        value = measure.metric.score(mine)
        assert value.n == len(mine)
        assert value == ratio_of_sums([t for r in mine if (t := measure.metric.tally(r)) is not None])
        backwards = measure.metric.score(mine[::-1]).value
        assert value.value is not None
        assert backwards is not None
        assert math.isclose(value.value, backwards, rel_tol=1e-12)  # sums in another order


def test_what_is_not_defined_is_absent_and_no_number(measures: Measures, records: list[ItemRecord]) -> None:
    nothing = without_answers(records)
    scores = scores_of(measures, "hook", nothing)
    assert scores.keys() == scores_of(measures, "hook", records).keys()
    assert {(score.value, score.standard_error, score.n) for score in scores.values()} == {(None, None, 0)}


def test_an_unanswered_item_weighs_nothing(measures: Measures, records: list[ItemRecord]) -> None:
    for measure in measures.by_key("hook", records).values():
        mine = [r for r in records if measure.applies(r)]
        assert measure.metric.score(mine) == measure.metric.score([*mine, *without_answers(mine)])


def test_equal_sides_have_a_change_of_exactly_nothing(measures: Measures, records: list[ItemRecord]) -> None:
    changes, flips = changes_of(measures, "hook", pair_records(records, records))
    assert {(change.change, change.ci95) for change in changes.values()} == {(0.0, (0.0, 0.0))}
    assert {(each.gained, each.lost) for each in flips.values()} == {(0, 0)}


def test_notes_are_sentences(measures: Measures, records: list[ItemRecord]) -> None:
    assert measures.measures_id
    notes = measures.notes(records)
    assert all(note.endswith(".") for note in notes)
    assert notes == measures.notes(records)
