"""Scenes ask a mixed lot of questions, all from one table."""

from collections import Counter, defaultdict

import pytest

from physedit.data_loaders.sample import Box
from physedit.data_loaders.scenes.questions import FRAME, TEMPLATES, ask, kind_of, read_question
from physedit.data_loaders.scenes.scene import LAWS, draw_scene

SCENES = [draw_scene(LAWS[seed % len(LAWS)], seed) for seed in range(300)]


def test_every_scene_asks_three_to_five_questions_of_which_one_is_semantic():
    for scene in SCENES:
        kinds = Counter(kind_of(question.text) for question in scene.questions)
        assert 3 <= sum(kinds.values()) <= 5
        assert kinds["semantic"] == 1
        assert kinds["physics"] >= 2


def test_every_template_is_asked():
    asked = {read_question(question.text).template.text for scene in SCENES for question in scene.questions}

    assert asked == {template.text for template in TEMPLATES.values()}
    assert len(asked) == 26


def test_every_law_has_yes_and_no_answers_on_physics():
    answers = defaultdict(Counter)
    for scene in SCENES:
        for question in scene.questions:
            if kind_of(question.text) == "physics":
                answers[scene.law][question.answer] += 1

    for law in LAWS:
        share = answers[law]["No"] / sum(answers[law].values())
        assert 0.2 <= share <= 0.7, law


def test_boxes_are_whole_pixels_inside_the_1024_frame():
    for scene in SCENES:
        for question in scene.questions:
            box = question.box
            assert 0 <= box.x < box.x + box.width <= FRAME
            assert 0 <= box.y < box.y + box.height <= FRAME
            assert all(edge % 16 == 0 for edge in (box.x, box.y, box.width, box.height))
            assert min(box.width, box.height) >= 4 * 16, question  # a judge needs something to look at


def test_a_question_is_read_back_with_its_names():
    question = ask("thing_gone", Box(1.2, 2, 3, 4), "red box")

    reading = read_question(question.text)

    assert question.text == "Is the red box gone?"
    assert question.box == Box(16, 32, 64, 64)
    assert (reading.template, reading.colour, reading.shape) == (TEMPLATES["thing_gone"], "red", "box")


def test_a_foreign_question_has_no_kind():
    assert read_question("Is the card gone?") is None
    with pytest.raises(ValueError, match="Is the card gone"):
        kind_of("Is the card gone?")
