"""The rule judge is right about true targets, sees through naive ones and smears, and bears noise."""

import pickle
from collections import defaultdict

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter

from physedit.data_loaders.sample import Box
from physedit.data_loaders.scenes.questions import TEMPLATES, kind_of, read_question
from physedit.data_loaders.scenes.scene import LAWS, draw_scene
from physedit.eval_hooks.judges.judge import JudgeQuestion, VerdictKind
from physedit.eval_hooks.judges.pixel_rules import PixelRuleJudge
from physedit.eval_hooks.judges.rules import RULES

SCENES = [draw_scene(law, 50_000_000 + seed) for law in LAWS for seed in range(40)]
JUDGE = PixelRuleJudge()
KEYS = {template.text: key for key, template in TEMPLATES.items()}
CONTROLS = {"shadow_kept", "mirror_kept", "stick_kept", "thing_kept", "thing_stays", "house_kept"}


def blurred(picture, radius):
    return np.asarray(Image.fromarray(picture).filter(ImageFilter.GaussianBlur(radius)))


def noisy(scene):
    noise = np.random.default_rng(int(scene.scene_id[-6:])).normal(0, 4, scene.physical.shape)
    return np.clip(blurred(scene.physical, 0.5) + noise, 0, 255).astype(np.uint8)


def half_way(scene):
    return ((scene.naive.astype(int) + scene.physical) // 2).astype(np.uint8)


def smeared(scene):
    soft, picture = blurred(scene.physical, 3), scene.physical.copy()
    for area in scene.edit_areas or (Box(0, 0, 64, 64),):
        part = np.s_[int(area.y) : int(area.y + area.height), int(area.x) : int(area.x + area.width)]
        picture[part] = soft[part]
    return picture


def blocky(scene):
    change = scene.physical.astype(float) - scene.naive
    steps = change.reshape(8, 8, 8, 8, 3).mean(axis=(1, 3)).repeat(8, axis=0).repeat(8, axis=1)
    return np.clip(scene.naive + steps, 0, 255).astype(np.uint8)


def answer(picture, question):
    image = torch.from_numpy(np.array(picture)).permute(2, 0, 1)
    return JUDGE.answer(image, JudgeQuestion(question.text, question.box))


class Marks:
    """Right answers in percent over the scenes, in any grouping."""

    def __init__(self, picture_of):
        self.rows = [
            (
                scene.law,
                kind_of(asked.text),
                KEYS[read_question(asked.text).template.text],
                answer(picture, asked).raw == asked.answer,
            )
            for scene in SCENES
            for picture in [picture_of(scene)]
            for asked in scene.questions
        ]

    def percent(self, *, law=None, kind=None, keys=None):
        marks = [
            right
            for of_law, of_kind, key, right in self.rows
            if law in (None, of_law) and kind in (None, of_kind) and (keys is None or key in keys)
        ]
        assert marks
        return 100 * sum(marks) / len(marks)


@pytest.fixture(scope="module")
def naive():
    return Marks(lambda scene: scene.naive)


@pytest.fixture(scope="module")
def mixed():
    return Marks(half_way)


def test_every_rule_of_the_question_table_exists():
    assert set(RULES) == {template.rule for template in TEMPLATES.values()}


def test_true_targets_are_right_under_every_law():
    marks = Marks(lambda scene: scene.physical)

    for law in LAWS:
        assert marks.percent(law=law, kind="physics") >= 99, law
        assert marks.percent(law=law, kind="semantic") == 100, law


def test_noise_and_slight_blur_are_borne_under_every_law():
    marks = Marks(noisy)

    for law in LAWS:
        assert marks.percent(law=law) >= 97, law


def test_unedited_sources_pass_only_controls():
    marks = Marks(lambda scene: scene.source)

    assert 12 <= marks.percent(kind="physics") <= 27
    assert marks.percent(kind="semantic") == 0


def test_naive_targets_are_right_on_the_edit_and_wrong_on_the_physics(naive):
    assert naive.percent(kind="semantic") >= 99.5
    assert 12 <= naive.percent(kind="physics") <= 27
    for law in LAWS:
        assert naive.percent(law=law, kind="physics") <= 45, law


def test_naive_targets_pass_no_question_but_controls(naive):
    assert naive.percent(keys=CONTROLS) >= 99
    assert naive.percent(kind="physics", keys=set(TEMPLATES) - CONTROLS) <= 1


def test_half_way_pictures_pass_hardly_any_question_but_controls(mixed):
    for law in LAWS:
        assert mixed.percent(law=law, kind="physics", keys=set(TEMPLATES) - CONTROLS) <= 3, law


def test_smeared_things_and_sticks_are_not_whole():
    marks = Marks(smeared)

    assert marks.percent(keys={"thing_rests"}) <= 3
    assert marks.percent(keys={"stick_broken", "stick_straight"}) <= 3


def test_a_blocky_glow_is_no_glow():
    assert Marks(blocky).percent(law="Light_Source_Effects", kind="physics", keys=set(TEMPLATES) - CONTROLS) <= 3


def test_only_pixels_inside_the_box_count():
    rng = np.random.default_rng(0)
    for scene in SCENES[::5]:
        for question in scene.questions:
            left, top = int(question.box.x / 16), int(question.box.y / 16)
            part = np.s_[top : top + int(question.box.height / 16), left : left + int(question.box.width / 16)]
            other = rng.integers(0, 256, scene.physical.shape).astype(np.uint8)
            other[part] = scene.physical[part]
            assert answer(other, question) == answer(scene.physical, question)


def test_an_explanation_gives_measure_and_limit():
    scene = next(scene for scene in SCENES if scene.law == "Light_Propagation")
    question = next(each for each in scene.questions if each.text.startswith("Is the floor evenly lit"))

    right, wrong = answer(scene.physical, question), answer(scene.naive, question)

    assert (right.kind, wrong.kind) == (VerdictKind.YES, VerdictKind.NO)
    assert right.explanation.startswith("darkest patch as a share of the floor 1.00 (at least 0.88)")
    assert wrong.explanation.startswith("darkest patch as a share of the floor 0.5")
    assert "(at least 0.88, failed)" in wrong.explanation


def test_foreign_questions_and_pictures_are_refused():
    box = Box(0, 0, 512, 512)
    picture = torch.zeros(3, 64, 64, dtype=torch.uint8)

    foreign = JUDGE.answer(picture, JudgeQuestion("Is the card gone?", box))
    large = JUDGE.answer(torch.zeros(3, 96, 64, dtype=torch.uint8), JudgeQuestion("Is the sky dark?", box))
    empty = JUDGE.answer(picture, JudgeQuestion("Is the sky dark?", Box(0, 0, 8, 512)))

    assert [verdict.kind for verdict in (foreign, large, empty)] == [VerdictKind.REFUSED] * 3
    assert "not one of the embedded world's" in foreign.explanation
    assert "(3, 96, 64)" in large.explanation
    assert "0 x 32 pixels" in empty.explanation


def test_flat_pictures_get_an_answer_to_every_question():
    asked = defaultdict(list)
    for scene in SCENES:
        for question in scene.questions:
            asked[read_question(question.text).template.text].append(question)
    for grey in (0, 128, 255):
        for questions in asked.values():
            kind = answer(np.full((64, 64, 3), grey, np.uint8), questions[0]).kind
            assert kind in (VerdictKind.YES, VerdictKind.NO)


def test_the_judge_names_its_rules_and_travels_to_other_processes():
    copy = pickle.loads(pickle.dumps(JUDGE))

    assert copy.judge_id == JUDGE.judge_id
    assert JUDGE.judge_id.startswith("pixel-rules/")
    assert "not PICAEval" in JUDGE.note


def test_a_thing_that_is_there_twice_is_not_whole():
    asked = 0
    for scene in SCENES:
        for question in scene.questions:
            if KEYS[read_question(question.text).template.text] != "thing_rests":
                continue
            picture, box = scene.physical.copy(), question.box
            top, left = round(box.y / 16), round(box.x / 16)
            right, height = left + round(box.width / 16), round(box.height / 16) - 6
            own = picture[top + 3 : top + 3 + height, left:right].copy()
            picture[top + 3 - height : top + 3, left:right] = own
            assert answer(picture, question).kind is VerdictKind.NO, scene.scene_id
            asked += 1
    assert asked == 40
