"""What is told of an editor without its weights is what the loaded editor does."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

import physedit.conf
from physedit.data_loaders.problems import RowProblem
from physedit.data_loaders.sample import PictureSizeError
from physedit.data_loaders.text_limits import Overlong, TextLimit
from physedit.models.backbone import Backbone
from physedit.models.flux_kontext import FluxKontext
from physedit.models.outline import Outline
from physedit.models.qwen_image_edit import QwenImageEdit
from physedit.models.qwen_text import InstructionError
from physedit.train.build import build, resolve_target

FOLDER = Path(physedit.conf.__file__).parent / "backbone"
AT_TEST_SIZE = {"weights": "random_tiny", "dtype": "float32", "area_px": 96 * 96, "vision_area_px": 64 * 64}
STORED = [(64, 64), (61, 45), (600, 3), (1, 1), (333, 1000), (4000, 3000)]
WORDS = "Remove the ball, then add its reflection: " * 8


def settings_of(name: str) -> Any:
    option = OmegaConf.load(FOLDER / f"{name}.yaml")
    if option.weights in ("toy", "random_tiny"):
        return option
    return OmegaConf.merge(option, {key: value for key, value in AT_TEST_SIZE.items() if key in option})


def outline_of(settings: Any) -> Outline:
    kind: type[Backbone] = resolve_target(settings._target_)
    return kind.outline(OmegaConf.to_container(settings))  # type: ignore[arg-type]


def asked(rule: Any, size: tuple[int, int]) -> object:
    try:
        return rule(*size)
    except PictureSizeError as error:
        return str(error)


def limits_of(outline: Outline) -> dict[str, TextLimit]:
    return {limit.encoder: limit for limit in outline.text_limits}


def counted(limit: TextLimit, text: str) -> int:
    assert limit.count is not None
    return limit.count(text)


@pytest.mark.parametrize("name", sorted(file.stem for file in FOLDER.glob("*.yaml")))
def test_an_outline_has_the_rules_of_the_loaded_editor(name: str) -> None:
    settings = settings_of(name)
    outline, backbone = pickle.loads(pickle.dumps(outline_of(settings))), build(settings)
    assert [asked(outline.sizes_of, size) for size in STORED] == [asked(backbone.sizes_of, size) for size in STORED]
    assert outline.max_sources == backbone.max_sources
    pipeline, limits = backbone._pipeline, limits_of(outline)
    if isinstance(backbone, FluxKontext):
        assert counted(limits["T5"], WORDS) == len(pipeline.tokenizer_2(WORDS).input_ids)
        assert limits["T5"].max_tokens == settings.max_text_tokens
        assert counted(limits["CLIP"], WORDS) == len(pipeline.tokenizer(WORDS).input_ids)
        assert limits["CLIP"].max_tokens == pipeline.tokenizer_max_length
    else:
        assert counted(limits["Qwen2.5-VL"], WORDS) == len(pipeline.processor.tokenizer(WORDS).input_ids)
        assert limits["Qwen2.5-VL"].max_tokens == pipeline.tokenizer_max_length


def test_no_weight_is_read_for_an_outline(monkeypatch: pytest.MonkeyPatch) -> None:
    import safetensors

    def refuse(*_arguments: object, **_options: object) -> None:
        raise AssertionError("a weight was read")

    monkeypatch.setattr(safetensors, "safe_open", refuse)
    monkeypatch.setattr(torch, "load", refuse)
    for name in ("toy", "toy_qwen_image_edit"):
        assert all(limit.count is not None for limit in outline_of(settings_of(name)).text_limits)


def test_a_hub_id_that_is_not_here_counts_no_tokens_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("physedit.models.outline.cached_snapshot", lambda _weights: None)
    for name in ("flux_kontext", "qwen_image_edit", "qwen_image_edit_plus"):
        settings = OmegaConf.load(FOLDER / f"{name}.yaml")
        outline = outline_of(settings)
        assert outline.sizes_of(1024, 1024).output == (1024, 1024)
        for limit in outline.text_limits:
            assert limit.count is None
            assert str(settings.weights) in limit.not_counted
        assert outline_of(settings).text_limits[0].overlong in (Overlong.CUT, Overlong.UNUSUAL)


def test_settings_that_the_editor_refuses_are_refused_by_its_outline() -> None:
    tiny = {"weights": "random_tiny", "dtype": "float32"}
    for change, words in (
        ({"area_px": 7}, "area_px is 7"),
        ({"max_text_tokens": 513}, "max_text_tokens"),
        ({"weights": "no/such/folder"}, "no/such/folder"),
        ({"area_px": "large"}, "area_px is 'large'"),
    ):
        with pytest.raises(ValueError, match=words):
            FluxKontext.outline({**tiny, "max_text_tokens": 8, **change})
    with pytest.raises(ValueError, match="vision_area_px"):
        QwenImageEdit.outline({**tiny, "pipeline": "QwenImageEditPlusPipeline", "area_px": 9216})


@pytest.mark.parametrize("kind", ["QwenImageEditPipeline", "QwenImageEditPlusPipeline", "toy"])
def test_an_outline_takes_exactly_the_instructions_that_the_loaded_editor_encodes(kind: str) -> None:
    """With each number of pictures: up to the last position, and without words that stand for pictures."""
    from tests.support.qwen_editors import PLUS, V1, batch_of, build, pictures

    is_toy = kind == "toy"
    name = PLUS if kind == PLUS else V1
    weights, area_px = ("toy", 64 * 64) if is_toy else ("random_tiny", 96 * 96)
    backbone = build(name, weights=weights, area_px=area_px)
    settings = {"weights": weights, "pipeline": name, "area_px": area_px}
    if name == PLUS:
        settings["vision_area_px"] = 64 * 64
    rule = pickle.loads(pickle.dumps(QwenImageEdit.outline(settings).text_rule))
    for num_pictures in range(1, backbone.max_sources + 1):
        given = pictures(num_pictures)
        sizes = [(picture.shape[1], picture.shape[2]) for picture in given]
        longest = max(length for length in range(3900, 4100) if rule(sizes, "!?" * (length // 2)) is None)
        texts = {"!?" * (longest // 2): None, "!?" * (longest // 2 + 1): RowProblem.PROMPT_TOO_LONG}
        texts |= {"a <|im_end|> {0} \u0958": None, "a<|image_pad|>": RowProblem.TEMPLATE_WORDS}
        texts |= {"<|video_pad|> b": RowProblem.TEMPLATE_WORDS}
        for text, reason in texts.items():
            refusal = rule(sizes, text)
            assert (refusal and refusal.reason) == reason
            batch = batch_of(given, text)
            if reason is None:
                backbone.encode_text(batch.given, batch.instructions)
                continue
            with pytest.raises(InstructionError):
                backbone.encode_text(batch.given, batch.instructions)


def test_an_instruction_beyond_the_positions_of_qwen_fails_and_one_within_them_does_not() -> None:
    """The limit that is told is where the transformer's own positions end, to within the template."""
    from tests.support.qwen_editors import PLUS, V1, batch_of, build, pictures

    for kind in (V1, PLUS):
        backbone = build(kind)
        settings = {"weights": "random_tiny", "pipeline": kind, "area_px": 96 * 96}
        if kind == PLUS:
            settings["vision_area_px"] = 64 * 64
        limit = limits_of(QwenImageEdit.outline(settings))["transformer"]
        assert limit.overlong is Overlong.DROPPED
        for num_tokens, fits in ((limit.max_tokens - 16, True), (limit.max_tokens + 64, False)):
            prompt = "é" * num_tokens
            prompt = prompt[: num_tokens * num_tokens // counted(limit, prompt)]
            assert abs(counted(limit, prompt) - num_tokens) <= 2
            batch = batch_of(pictures(1), prompt)
            if not fits:
                with pytest.raises(InstructionError, match="tokens, but the transformer has positions for"):
                    backbone.encode(batch)
                continue
            conditioning = backbone.encode(batch)
            with torch.no_grad():
                backbone.velocity(backbone.denoiser, torch.zeros_like(conditioning.target), torch.ones(1), conditioning)
