import pytest

from physedit.data_loaders.scenes.questions import kind_of
from physedit.data_loaders.scenes.scene import LAWS, draw_scene
from physedit.eval_hooks.compare import pair_records
from physedit.eval_hooks.metrics.metric import Answer, ItemRecord
from physedit.eval_hooks.picabench.measures import changes_of, scores_of
from physedit.eval_hooks.picabench.scene_measures import SceneMeasures


def _records(*, is_physics_right: bool) -> list[ItemRecord]:
    records = []
    for index, law in enumerate(LAWS):
        scene = draw_scene(law, index)
        answers = tuple(
            Answer(number, q.text, q.answer, kind, "", kind == "semantic" or is_physics_right, "", "")
            for number, q in enumerate(scene.questions)
            if (kind := kind_of(q.text))
        )
        area = bool(scene.edit_areas)
        records.append(
            ItemRecord(index, scene.category, law, scene.operation, "superficial", answers, 30.0 if area else 5.0, area)
        )
    return records


def test_physics_and_semantics_are_reported_apart_under_stable_keys() -> None:
    scores = scores_of(SceneMeasures(), "scenes", _records(is_physics_right=False))
    assert list(scores)[:3] == ["scenes/physics_acc", "scenes/semantic_acc", "scenes/psnr"]
    assert set(scores) - set(list(scores)[:3]) == {f"scenes/physics_acc/{law}" for law in LAWS}
    assert (scores["scenes/physics_acc"].value, scores["scenes/semantic_acc"].value) == (0.0, 1.0)


def test_psnr_leaves_out_laws_that_change_the_whole_picture() -> None:
    records = _records(is_physics_right=True)
    scores = scores_of(SceneMeasures(), "scenes", records)
    assert (scores["scenes/psnr"].value, scores["scenes/psnr"].n) == (30.0, 5)
    assert SceneMeasures().notes(records) == ("PSNR leaves out 1 of 6 items whose edit changes the whole picture.",)


def test_changes_and_flips_are_those_of_the_kind() -> None:
    paired = pair_records(_records(is_physics_right=False), _records(is_physics_right=True))
    changes, flips = changes_of(SceneMeasures(), "scenes", paired)
    assert (changes["scenes/physics_acc"].change, changes["scenes/semantic_acc"].change) == (1.0, 0.0)
    assert changes["scenes/semantic_acc"].ci95 == (0.0, 0.0)
    assert flips["scenes/physics_acc"].gained > 0
    assert flips["scenes/semantic_acc"].gained == 0
    assert "scenes/psnr" not in flips


def test_an_unknown_question_is_refused() -> None:
    with pytest.raises(ValueError, match="not one of the embedded world's"):
        SceneMeasures().kind_of("Is it nice?")
