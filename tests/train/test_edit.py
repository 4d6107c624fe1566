"""``physedit edit``: what it draws is the backbone's own edit, and what it refuses leaves nothing behind."""

import json
import math
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from tests.support.adapters import FILE, as_if_of_a_run, write_adapter_of
from tests.support.runs import physedit
from torch import Tensor
from typer.testing import CliRunner

from physedit.data_loaders.images import read_rgb
from physedit.models.backbone import Backbone
from physedit.models.flux_kontext import FluxKontext
from physedit.models.lora import LoraSettings, without_adapter
from physedit.models.qwen_image_edit import QwenImageEdit
from physedit.train.checkpoint import CheckpointIncomplete
from physedit.train.cli import app
from physedit.train.config import ConfigError
from physedit.train.edit import side_by_side

PROMPT = "Remove the ball."
NUM_STEPS, SEED = 2, 5
TINY = ("backbone=random_tiny", "num_threads=1")
PLUS = (
    "backbone=qwen_image_edit_plus", "backbone.weights=random_tiny", "backbone.dtype=float32",
    "backbone.area_px=9216", "backbone.vision_area_px=4096", "num_threads=1",
)  # fmt: skip
VARIANTS = {
    "alpha": LoraSettings(4, 6.0),
    "rslora": LoraSettings(2, 3.0, use_rslora=True),
    "dora": LoraSettings(3, 3.0, use_dora=True),
}


def build() -> FluxKontext:
    return FluxKontext(weights="random_tiny", dtype="float32", max_text_tokens=48, area_px=4096)


def build_plus() -> QwenImageEdit:
    return QwenImageEdit(
        weights="random_tiny", dtype="float32", pipeline="QwenImageEditPlusPipeline", area_px=9216, vision_area_px=4096
    )


def run(*arguments: object) -> str:
    """Runs the verb in this process and returns what it printed; what it refuses is raised."""
    result = CliRunner().invoke(app, ["edit", *map(str, arguments)])
    if result.exception is not None:
        raise result.exception
    return result.stdout


def edited_by(editor: Backbone, picture: Path) -> Tensor:
    noise = torch.Generator().manual_seed(SEED)
    return editor.edit(
        editor.denoiser, [[read_rgb(picture)]], [PROMPT],
        num_steps=NUM_STEPS, guidance=editor.default_guidance, generators=[noise],
    )[0]  # fmt: skip


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    path = tmp_path / "given" / "room.png"
    path.parent.mkdir()
    Image.fromarray(pixels).resize((80, 60), Image.Resampling.BICUBIC).save(path)
    return path


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_adapter_of(build(), tmp_path_factory.mktemp("adapter"), LoraSettings(4, 6.0))


def usual(picture: Path, out: Path) -> list[object]:
    return ["--image", picture, "--prompt", PROMPT, "--seed", SEED, "--steps", NUM_STEPS, "--out", out]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("preset", ["attention", "all_linear"])
def test_pictures_are_the_backbones_own_edits_from_one_noise(
    picture: Path, tmp_path: Path, variant: str, preset: str
) -> None:
    editor = build()
    file = write_adapter_of(editor, tmp_path / "adapter", VARIANTS[variant], targets=editor.lora_presets[preset])
    tuned = edited_by(editor, picture)
    with without_adapter(editor.denoiser):
        base = edited_by(editor, picture)
    run("--adapter", file.parent, *usual(picture, tmp_path / "out"), *TINY)
    assert torch.equal(read_rgb(tmp_path / "out" / "base.png"), base)
    assert torch.equal(read_rgb(tmp_path / "out" / "tuned.png"), tuned)
    assert not torch.equal(base, tuned)


def test_steps_and_guidance_are_the_backbones_own_unless_given(picture: Path, tmp_path: Path) -> None:
    asked = ["--image", picture, "--prompt", PROMPT, "--seed", SEED]
    own = ("backbone.edit_steps=3", "backbone.edit_guidance=2.0")
    run(*asked, "--out", tmp_path / "own", *PLUS, *own)
    run(*asked, "--out", tmp_path / "asked", "--steps", 3, "--guidance", 2, *PLUS)
    record = json.loads((tmp_path / "own" / "edit.json").read_text())
    assert (record["num_steps"], record["guidance"]) == (3, 2.0)
    assert (tmp_path / "own" / "base.png").read_bytes() == (tmp_path / "asked" / "base.png").read_bytes()


def test_an_adapter_that_changes_nothing_gives_the_base(picture: Path, tmp_path: Path) -> None:
    file = write_adapter_of(build(), tmp_path / "adapter", LoraSettings(4, 4.0), size=0)
    run("--adapter", file, *usual(picture, tmp_path / "out"), *TINY)
    assert (tmp_path / "out" / "base.png").read_bytes() == (tmp_path / "out" / "tuned.png").read_bytes()


def test_the_folder_tells_how_it_was_made(picture: Path, adapter: Path, tmp_path: Path) -> None:
    printed = run("--adapter", adapter, "--json", *usual(picture, tmp_path / "out"), "--guidance", 3, *TINY)
    out = tmp_path / "out"
    names = {"base.png", "edit.json", "side_by_side.png", "source.png", "tuned.png"}
    assert {path.name for path in out.iterdir()} == names
    record = json.loads((out / "edit.json").read_text())
    assert json.loads(printed) == record
    assert (record["prompt"], record["seed"], record["num_steps"], record["guidance"]) == (PROMPT, SEED, NUM_STEPS, 3.0)
    assert (record["weights"], record["adapter"]["rank"], record["adapter"]["alpha"]) == ("random_tiny", 4, 6.0)
    assert record["images"][0]["path"] == str(picture)
    assert (record["images"][0]["width"], record["images"][0]["height"]) == (80, 60)
    for name in ("source", "base", "tuned"):
        assert read_rgb(out / f"{name}.png").shape == (3, record["size"]["height"], record["size"]["width"])
    sheet = read_rgb(out / "side_by_side.png")
    assert sheet.shape[-1] > 3 * record["size"]["width"]


def test_without_an_adapter_the_base_alone_edits(picture: Path, tmp_path: Path) -> None:
    run(*usual(picture, tmp_path / "out"), *TINY)
    assert not (tmp_path / "out" / "tuned.png").exists()
    assert torch.equal(read_rgb(tmp_path / "out" / "base.png"), edited_by(build(), picture))
    assert json.loads((tmp_path / "out" / "edit.json").read_text())["adapter"] is None


def test_an_adapter_of_a_run_brings_its_backbone(picture: Path, adapter: Path, tmp_path: Path) -> None:
    checkpoint = as_if_of_a_run(adapter, tmp_path / "run", "experiment=smoke", "tracker=none")
    run("--adapter", checkpoint, *usual(picture, tmp_path / "of_run"))
    run("--adapter", adapter, *usual(picture, tmp_path / "loose"), *TINY)
    assert (tmp_path / "of_run" / "tuned.png").read_bytes() == (tmp_path / "loose" / "tuned.png").read_bytes()
    with pytest.raises(ConfigError, match="step_00000008"):
        run("--adapter", tmp_path / "run", *usual(picture, tmp_path / "out"))


def test_an_adapter_of_a_run_multiplies_in_the_dtype_that_it_was_trained_in(
    picture: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    editor = FluxKontext(weights="random_tiny", dtype="bfloat16", max_text_tokens=48, area_px=4096)
    file = write_adapter_of(editor, tmp_path / "adapter", LoraSettings(4, 6.0, compute_dtype=torch.bfloat16))
    trained = ("backbone.dtype=bfloat16", "adapter.compute_dtype=bfloat16")
    checkpoint = as_if_of_a_run(file, tmp_path / "run", "experiment=smoke", "tracker=none", *trained)
    run("--adapter", checkpoint, *usual(picture, tmp_path / "of_run"))
    assert torch.equal(read_rgb(tmp_path / "of_run" / "tuned.png"), edited_by(editor, picture))
    assert json.loads((tmp_path / "of_run" / "edit.json").read_text())["adapter"]["compute_dtype"] == "bfloat16"
    loose = [*usual(picture, tmp_path / "loose"), *TINY, trained[0]]
    assert "No run tells in what" not in caplog.text
    run("--adapter", file, *loose)
    assert f"No run tells in what {file} multiplies: float32." in caplog.text
    tuned = (tmp_path / "loose" / "tuned.png").read_bytes()
    assert tuned != (tmp_path / "of_run" / "tuned.png").read_bytes()
    with pytest.raises(ConfigError, match="holds another edit"):
        run("--adapter", file, *loose, trained[1])


def test_a_file_of_any_name_without_metadata_is_taken_as_diffusers_takes_it(picture: Path, tmp_path: Path) -> None:
    file = write_adapter_of(build(), tmp_path / "adapter", LoraSettings(4, 4.0))
    save_file(load_file(file), tmp_path / "other.safetensors")
    run("--adapter", tmp_path / "other.safetensors", *usual(picture, tmp_path / "bare"), *TINY)
    run("--adapter", file, *usual(picture, tmp_path / "told"), *TINY)
    assert (tmp_path / "bare" / "tuned.png").read_bytes() == (tmp_path / "told" / "tuned.png").read_bytes()


def test_a_rotated_photo_is_edited_upright(picture: Path, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    with Image.open(picture) as image:
        image.save(tmp_path / "rotated.png", exif=exif)
    run(*usual(tmp_path / "rotated.png", tmp_path / "out"), *TINY)
    _, height, width = read_rgb(tmp_path / "out" / "base.png").shape
    assert height > width


def test_the_same_edit_may_be_made_again_and_another_is_not_overwritten(
    picture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    run(*usual(picture, out), *TINY)
    first = (out / "base.png").read_bytes()
    (out / "base.png").unlink()
    run(*usual(picture, out), *TINY)
    assert (out / "base.png").read_bytes() == first
    with pytest.raises(ConfigError, match="another edit"):
        run(*usual(picture, out), *TINY, "--seed", SEED + 1)
    monkeypatch.chdir(tmp_path)
    for seed in (1, 2):
        run("--image", picture, "--prompt", PROMPT, "--steps", 1, "--seed", seed, *TINY)
    assert len(list((tmp_path / "edits").glob("room_*"))) == 2


def test_references_are_edited_with_where_the_backbone_takes_them(picture: Path, tmp_path: Path) -> None:
    Image.new("RGB", (50, 70), "red").save(tmp_path / "red.png")
    run(*usual(picture, tmp_path / "one"), *PLUS)
    run(*usual(picture, tmp_path / "two"), "--image", tmp_path / "red.png", *PLUS)
    assert (tmp_path / "one" / "base.png").read_bytes() != (tmp_path / "two" / "base.png").read_bytes()
    widths = [read_rgb(tmp_path / name / "side_by_side.png").shape[-1] for name in ("one", "two")]
    assert widths[0] < widths[1]
    with pytest.raises(ConfigError, match="2 pictures to edit from, but this editor takes 1"):
        run(*usual(picture, tmp_path / "out"), "--image", tmp_path / "red.png", *TINY)
    assert not (tmp_path / "out").exists()


def test_steps_that_the_scheduler_cannot_take_are_refused(picture: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least 2 steps"):
        run(*usual(picture, tmp_path / "out"), "--steps", 1, *PLUS)


REFUSED = {
    "no such image": (["--image", "nowhere.png"], "nowhere.png does not exist"),
    "folder as image": (["--image", "."], "is no file"),
    "not an image": (["--image", "notes.txt"], r"notes\.txt cannot be used: unreadable picture\. Give a picture that"),
    "half an image": (["--image", "half.png"], r"half\.png cannot be used: damaged picture\. Give a picture that"),
    "empty prompt": (["--prompt", "  "], "--prompt is empty"),
    "no steps": (["--steps", "0"], "--steps 0"),
    "guidance": (["--guidance", "nan"], "--guidance nan"),
    "seed": (["--seed", "-1"], "--seed -1"),
    "no such adapter": (["--adapter", "nowhere"], "nowhere does not exist"),
    "no adapter in it": (["--adapter", "."], "holds no adapter"),
    "damaged adapter": (["--adapter", "damaged.safetensors"], r"damaged\.safetensors .* cannot be read"),
    "foreign adapter": (["--adapter", "foreign.safetensors"], r"foreign\.safetensors is no adapter of a diffusers"),
    "uneven adapter": (["--adapter", "uneven.safetensors"], r"uneven\.safetensors: an adapter with ranks \[2, 4\]"),
    "adapter of another width": (["--adapter", "wide.safetensors"], r"wide\.safetensors is no adapter of this base"),
    "out below a file": (["--out", "notes.txt/out"], "cannot be written"),
    "out with other files": (["--out", "given"], "holds other files"),
    "no encoders": (["backbone.encoders=absent"], r"leaves out the text encoders, but edits, evaluations"),
    "unknown backbone": (["backbone=flux"], "backbone=flux"),
}


@pytest.mark.parametrize(("change", "words"), REFUSED.values(), ids=REFUSED)
def test_bad_input_is_named_and_nothing_is_written(
    picture: Path, adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("no picture")
    Path("half.png").write_bytes(picture.read_bytes()[:-500])
    state = load_file(adapter)
    first = next(name for name in state if name.endswith("lora_A.weight"))
    save_file({"lora_unet_x.lora_down.weight": torch.ones(2, 2)}, "foreign.safetensors")
    save_file(state | {first: state[first][:2].clone()}, "uneven.safetensors")
    save_file(state | {first: torch.ones(4, 7)}, "wide.safetensors")
    Path("damaged.safetensors").write_bytes(adapter.read_bytes()[:-8])
    before = sorted(tmp_path.rglob("*"))
    given = dict(zip(*[iter(usual(picture, Path("out")))] * 2, strict=True))
    options = dict(zip(*[iter(change)] * 2, strict=True)) if change[0].startswith("--") else {}
    asked = [word for pair in (given | options).items() for word in pair]
    with pytest.raises(ConfigError, match=words):
        run(*asked, *TINY, *([] if options else change))
    assert sorted(tmp_path.rglob("*")) == before


def test_an_adapter_of_another_backbone_is_refused(picture: Path, tmp_path: Path) -> None:
    editor = QwenImageEdit(
        weights="random_tiny", dtype="float32", pipeline="QwenImageEditPipeline", area_px=9216
    )  # fmt: skip
    file = write_adapter_of(editor, tmp_path / "adapter", LoraSettings(4, 4.0))
    with pytest.raises(ConfigError, match=r"FluxTransformer2DModel has no linear layer .*backbone=NAME"):
        run("--adapter", file, *usual(picture, tmp_path / "out"), *TINY)
    with pytest.raises(ConfigError, match=r"lies in no run folder.*backbone=NAME"):
        run("--adapter", file, *usual(picture, tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_that_is_not_the_saved_one_is_refused(picture: Path, adapter: Path, tmp_path: Path) -> None:
    checkpoint = as_if_of_a_run(adapter, tmp_path / "run", "experiment=smoke", "tracker=none")
    (checkpoint / "manifest.json").write_text("{}")
    with pytest.raises(CheckpointIncomplete, match=r"manifest\.json"):
        run("--adapter", checkpoint / "adapter" / FILE, *usual(picture, tmp_path / "out"))


def test_a_failed_write_leaves_nothing(picture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space_left(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("physedit.train.edit.write_json", no_space_left)
    with pytest.raises(OSError, match="No space"):
        run(*usual(picture, tmp_path / "out"), *TINY)
    assert [path.name for path in tmp_path.iterdir()] == ["given"]


@pytest.mark.parametrize(("kind", "options"), [(FluxKontext, TINY), (QwenImageEdit, PLUS)])
@pytest.mark.parametrize(
    ("size", "said"), [(1e30, "pixels that are not numbers"), (math.nan, "values that are not finite")]
)
def test_an_edit_that_is_not_a_number_is_refused_and_not_drawn_black(
    picture: Path, tmp_path: Path, kind: type[Backbone], options: tuple[str, ...], size: float, said: str
) -> None:
    editor: Backbone = build() if kind is FluxKontext else build_plus()
    file = write_adapter_of(editor, tmp_path / "adapter", LoraSettings(4, 6.0), size=size)
    with pytest.raises(ConfigError, match=said):
        run("--adapter", file, *usual(picture, tmp_path / "out"), *options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("prompt", "said"), [("a " * 5000, "'a a .*…' and its pictures make .* tokens"),
                                              ("Remove <|image_pad|>.", "words of the template")])  # fmt: skip
def test_an_instruction_that_the_editor_cannot_take_is_refused(
    picture: Path, tmp_path: Path, prompt: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        run("--image", picture, "--steps", 2, "--out", tmp_path / "out", "--prompt", prompt, *PLUS)


def test_a_caption_of_any_length_is_cut_at_once() -> None:
    started = time.monotonic()
    sheet = side_by_side({"base": torch.zeros(3, 64, 64, dtype=torch.uint8)}, "a b " * 20_000)
    assert time.monotonic() - started < 30
    assert sheet.width < 400


def test_as_a_command_bad_input_is_one_paragraph(tmp_path: Path) -> None:
    result = physedit("edit", "--image", "nowhere.png", "--prompt", PROMPT, "backbone=random_tiny", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.strip().splitlines() == [
        "physedit: --image nowhere.png does not exist. Give a picture file."
    ]  # fmt: skip
    assert list(tmp_path.iterdir()) == []


def test_an_editor_without_encoders_is_refused_whatever_its_run_was(picture: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"leaves out the text encoders, but an edit encodes its instruction\. Use"):
        run(*usual(picture, tmp_path / "out"), *TINY, "encode=cached", "backbone.encoders=absent")
    assert not (tmp_path / "out").exists()
