"""What every judge option promises, over the questions of the embedded world."""

import pickle
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from tests.support.judge_server import judge_server
from torch import Tensor

import physedit.conf
from physedit.data_loaders.sample import Box
from physedit.data_loaders.scenes.scene import LAWS, Scene, draw_scene
from physedit.eval_hooks.judges.judge import Judge, JudgeQuestion, JudgeUnavailable, Verdict, VerdictKind
from physedit.train.build import build

OPTIONS = {
    file.stem: OmegaConf.load(file) for file in sorted((Path(physedit.conf.__file__).parent / "judge").glob("*.yaml"))
}
ASK_A_SERVER = frozenset({"gpt5", "openai_compatible", "qwen25_vl_72b"})
"""Options that ask a server, which a stand-in replaces."""
NEED_A_MODEL = ASK_A_SERVER | {"qwen25_vl_local"}
"""Options that know nothing of the embedded world's questions themselves."""
KNOW_ONLY_SCENES = frozenset({"pixel_rules"})
"""Options that refuse every question but the embedded world's."""
SCENES = [draw_scene(law, seed) for law in LAWS for seed in range(2)]
ANSWER_NOTHING = frozenset({"none"})
"""Options that leave every question for later."""
ANSWERS = {VerdictKind.YES, VerdictKind.NO}


@pytest.fixture(params=sorted(OPTIONS.keys() - NEED_A_MODEL - ANSWER_NOTHING))
def name(request: pytest.FixtureRequest) -> str:
    option: str = request.param
    return option


@pytest.fixture
def judge(name: str) -> Judge:
    built: Judge = build(OPTIONS[name])
    return built


def pictures(scene: Scene) -> tuple[Tensor, Tensor]:
    """The edit under the law and the one that knows no physics."""
    physical, naive = (torch.from_numpy(picture.copy()).permute(2, 0, 1) for picture in (scene.physical, scene.naive))
    return physical, naive


def verdicts(judge: Judge, scene: Scene) -> list[Verdict]:
    return [
        judge.answer(picture, JudgeQuestion(question.text, question.box))
        for picture in pictures(scene)
        for question in scene.questions
    ]


def test_every_option_is_found() -> None:
    assert {"pixel_rules"} <= OPTIONS.keys()
    assert OPTIONS.keys() == NEED_A_MODEL | KNOW_ONLY_SCENES | ANSWER_NOTHING


@pytest.mark.parametrize("name", sorted(ANSWER_NOTHING))
def test_no_judge_leaves_every_question_open(name: str) -> None:
    judge: Judge = build(OPTIONS[name])
    with pytest.raises(JudgeUnavailable, match="physedit judge RUN"):
        judge.answer(pictures(SCENES[0])[0], JudgeQuestion("Is it?", None))


@pytest.mark.parametrize("name", sorted(NEED_A_MODEL))
def test_every_option_with_a_model_answers_by_its_protocol(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-SECRET")
    picture, _ = pictures(SCENES[0])
    question = JudgeQuestion(SCENES[0].questions[0].text, SCENES[0].questions[0].box)
    with judge_server() as server:
        of_server = {"base_url": server.base_url, "model": "seer"}
        other = of_server if name in ASK_A_SERVER else {"weights": "random_tiny", "dtype": "float32", "device": "cpu"}
        config = OmegaConf.merge({"output_root": str(tmp_path)}, {"judge": OPTIONS[name]}, {"judge": other})
        judge: Judge = build(config.judge)
        verdict = judge.answer(picture, question)
    assert judge.protocol.name == "official"
    assert verdict.raw
    assert judge.protocol.parse(verdict.raw).kind == verdict.kind
    assert judge.judge_id.strip() == judge.judge_id != ""
    assert len(judge.note.splitlines()) == 1
    assert judge.num_askers >= 1


def test_every_question_gets_a_yes_or_no_with_words(judge: Judge) -> None:
    for scene in SCENES:
        for verdict in verdicts(judge, scene):
            assert verdict.kind in ANSWERS
            assert verdict.raw
            assert verdict.explanation


def test_the_answer_comes_from_the_picture(judge: Judge) -> None:
    for law in LAWS:
        found = [verdicts(judge, scene) for scene in SCENES if scene.law == law]
        halves = [(each[: len(each) // 2], each[len(each) // 2 :]) for each in found]
        assert any([v.kind for v in first] != [v.kind for v in second] for first, second in halves)


def test_the_same_question_gets_the_same_answer_from_a_judge_built_anew_or_sent_elsewhere(
    judge: Judge, name: str
) -> None:
    for other in (judge, build(OPTIONS[name]), pickle.loads(pickle.dumps(judge))):
        assert other.judge_id == judge.judge_id
        assert all(verdicts(other, scene) == verdicts(judge, scene) for scene in SCENES)


def test_the_picture_is_only_looked_at(judge: Judge) -> None:
    picture, _ = pictures(SCENES[0])
    before = picture.clone()
    judge.answer(picture, JudgeQuestion(SCENES[0].questions[0].text, SCENES[0].questions[0].box))
    assert torch.equal(picture, before)


def test_the_judge_names_itself_for_the_report(judge: Judge) -> None:
    assert judge.judge_id.strip() == judge.judge_id != ""
    assert len(judge.note.splitlines()) == 1


def test_an_unknown_question_is_answered_or_refused_but_no_error(judge: Judge, name: str) -> None:
    picture, _ = pictures(SCENES[0])
    verdict = judge.answer(picture, JudgeQuestion("Is the reflection of the swan complete?", Box(0, 0, 1024, 1024)))
    if name in KNOW_ONLY_SCENES:
        assert verdict.kind == VerdictKind.REFUSED
    assert verdict.kind in ANSWERS or verdict.explanation
