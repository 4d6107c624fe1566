"""What every backbone promises, over the weights that can be had without a network."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

import physedit.conf
import physedit.models
from physedit.data_loaders.sample import EditBatch, PictureSizeError
from physedit.models.adapter_file import AdapterFormat, read_adapter, read_adapter_format
from physedit.models.backbone import Backbone, Conditioning, join
from physedit.models.encoding import joined_latents, latents_as_tensors, latents_from_tensors
from physedit.models.lora import LoraSettings, adapter_state, add_adapter, load_state, without_adapter
from physedit.train.build import build

TOY_FOLDER = Path(physedit.models.__file__).parent / "toy" / "flux_kontext"
PRESETS = {"attention", "attention_mlp", "image_stream", "all_linear"}
# Sums over a batch may be ordered otherwise than over one item. Relative to the velocity; ten times the most seen.
BATCH_TOLERANCE = 1e-5


OPTIONS = {
    file.stem: OmegaConf.load(file)
    for file in sorted((Path(physedit.conf.__file__).parent / "backbone").glob("*.yaml"))
}
AT_TEST_SIZE = {"weights": "random_tiny", "dtype": "float32", "area_px": 64 * 64, "vision_area_px": 56 * 56}


def without_download(option: DictConfig) -> DictConfig:
    """Returns the option as it is if its weights are shipped, else the same backbone with seeded tiny weights."""
    if option.weights in ("toy", "random_tiny"):
        return option
    tiny = {key: value for key, value in AT_TEST_SIZE.items() if key in option}
    return OmegaConf.merge(option, tiny)


BUILDERS: dict[str, Callable[[], Backbone]] = {
    name: partial(build, without_download(option)) for name, option in OPTIONS.items()
}


STORED = (61, 45)
"""Height and width of the pictures: odd, so that they are worked at another size."""


@dataclass(frozen=True)
class Case:
    build: Callable[[], Backbone]
    backbone: Backbone
    batch: EditBatch
    noise: Tensor


@pytest.fixture(scope="module", params=BUILDERS)
def case(request: pytest.FixtureRequest) -> Case:
    backbone = BUILDERS[request.param]()
    generator = torch.Generator().manual_seed(5)
    coarse = torch.randint(0, 256, (4, 3, 4, 3), generator=generator).float()
    pictures = torch.nn.functional.interpolate(coarse, size=STORED, mode="bilinear").to(torch.uint8)
    batch = EditBatch(
        ("a", "b"),
        tuple(pictures[:2]),
        tuple(pictures[2:]),
        ("Remove the ball.", "Make it night so that the lamp casts light."),
    )
    add_adapter(backbone.denoiser, LoraSettings(4, 8.0), targets=backbone.lora_presets["attention_mlp"], seed=0)
    noise = torch.randn(backbone.encode(batch).target.shape, generator=generator)
    return Case(BUILDERS[request.param], backbone, batch, noise)


@pytest.fixture(autouse=True)
def fresh_adapter(request: pytest.FixtureRequest) -> Iterator[None]:
    """Gives every test the adapter as it was added."""
    if "case" not in request.fixturenames:
        yield
        return
    case = request.getfixturevalue("case")
    kept = {name: value.clone() for name, value in adapter_state(case.backbone.denoiser).items()}
    yield
    load_state(case.backbone.denoiser, kept)


def test_every_option_is_found() -> None:
    real = {"flux_kontext", "qwen_image_edit", "qwen_image_edit_plus"}
    assert OPTIONS.keys() == real | {"random_tiny", "toy", "toy_qwen_image_edit"}
    assert {name for name, option in OPTIONS.items() if "/" in option.weights} == real


def randomise(backbone: Backbone) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(9)
    live = adapter_state(backbone.denoiser)
    state = {name: 0.2 * torch.randn(value.shape, generator=generator) for name, value in live.items()}
    load_state(backbone.denoiser, state)
    return state


def part(batch: EditBatch, *rows: int) -> EditBatch:
    index = list(rows)
    return EditBatch(
        tuple(batch.sample_ids[i] for i in index),
        tuple(batch.sources[i] for i in index),
        tuple(batch.targets[i] for i in index),
        tuple(batch.instructions[i] for i in index),
    )


@torch.no_grad()
def predict(case: Case, conditioning: Conditioning, noise: Tensor, sigma: list[float]) -> Tensor:
    share = torch.tensor(sigma)[:, None, None, None]
    noisy = (1 - share) * conditioning.target + share * noise
    return case.backbone.velocity(case.backbone.denoiser, noisy, torch.tensor(sigma), conditioning)


def edit(case: Case, batch: EditBatch, seeds: list[int]) -> Tensor:
    return case.backbone.edit(
        case.backbone.denoiser,
        batch.given,
        batch.instructions,
        num_steps=3,
        guidance=case.backbone.default_guidance,
        generators=[torch.Generator().manual_seed(seed) for seed in seeds],
    )


def test_conditioning_has_the_promised_form(case: Case) -> None:
    conditioning = case.backbone.encode(case.batch)
    latent = conditioning.target.shape
    assert latent[0] == 2
    assert [source.shape[:2] for source in conditioning.sources] == [latent[:2]]
    assert conditioning.change.shape == (2, 1, *latent[2:])
    assert conditioning.change.min() >= 0
    assert conditioning.change.max() <= 1
    for value in (conditioning.target, *conditioning.sources, conditioning.change):
        assert value.dtype == torch.float32
        assert not value.requires_grad
    for value in conditioning.text.values():
        assert value.shape[0] == 2
        assert not value.requires_grad
    assert isinstance(conditioning.time_shift, float)


def test_encoding_is_deterministic(case: Case) -> None:
    first = case.backbone.encode(case.batch)
    case.backbone.to(torch.device("cpu"))  # a move forgets what an encoder keeps
    second = case.backbone.encode(case.batch)
    assert torch.equal(first.target, second.target)
    assert torch.equal(first.sources[0], second.sources[0])
    assert all(torch.equal(first.text[name], second.text[name]) for name in first.text)


def test_encoding_does_not_depend_on_the_batch(case: Case) -> None:
    both = case.backbone.encode(case.batch)
    for i in (0, 1):
        case.backbone.to(torch.device("cpu"))
        alone = case.backbone.encode(part(case.batch, i))
        assert torch.equal(alone.target[0], both.target[i])
        assert torch.equal(alone.sources[0][0], both.sources[0][i])
        for name, states in alone.text.items():
            length = states.shape[1]  # a batch pads the shorter instruction
            assert torch.equal(states[0], both.text[name][i, :length])


def test_pictures_that_are_equal_have_no_change(case: Case) -> None:
    same = replace(case.batch, targets=case.batch.sources)
    assert case.backbone.encode(same).change.abs().max() == 0


def test_unlike_sizes_and_too_many_pictures_are_refused_by_encode_and_edit_alike(case: Case) -> None:
    pictures = tuple(torch.zeros(3, *size, dtype=torch.uint8) for size in ((30, 90), (90, 30)))
    unlike = replace(case.batch, sources=pictures, targets=pictures)
    crowded = replace(part(case.batch, 0), references=(case.batch.sources[:1] * case.backbone.max_sources,))
    for batch, message in ((unlike, "edited at one size"), (crowded, f"takes {case.backbone.max_sources}")):
        with pytest.raises(PictureSizeError, match=message):
            case.backbone.encode(batch)
        with pytest.raises(PictureSizeError, match=message):
            edit(case, batch, [0, 1])


@pytest.mark.parametrize(("height", "width"), [(64, 64), (97, 211), (1000, 750), (3000, 4000), (2048, 1024)])
def test_sizes_depend_on_the_aspect_alone_and_keeps_its_area(case: Case, height: int, width: int) -> None:
    sizes = case.backbone.sizes_of(height, width)
    assert sizes == case.backbone.sizes_of(3 * height, 3 * width)
    square = case.backbone.sizes_of(512, 512)
    assert square.source == square.output
    # A side is rounded to a multiple of up to 32 pixels, which at 64x64 is half of it.
    for size in (sizes.source, sizes.output):
        assert 0.4 < size[0] * size[1] / (square.output[0] * square.output[1]) < 1.7


def test_target_of_another_size_is_fitted_to_the_source(case: Case) -> None:
    picture = case.batch.sources[0]
    twice = torch.nn.functional.interpolate(picture[None].float(), scale_factor=2, mode="nearest")[0].to(torch.uint8)
    wider = torch.cat([picture, picture[..., :20]], dim=-1)
    same = case.backbone.encode(replace(part(case.batch, 0), targets=(picture,)))
    for other in (twice, wider):
        conditioning = case.backbone.encode(replace(part(case.batch, 0), targets=(other,)))
        assert conditioning.target.shape == same.target.shape
        assert not torch.equal(conditioning.target, same.target)


def test_velocity_has_the_shape_of_the_target_in_float32(case: Case) -> None:
    conditioning = case.backbone.encode(case.batch)
    velocity = predict(case, conditioning, case.noise, [0.9, 0.2])
    assert velocity.dtype == torch.float32
    assert velocity.shape == conditioning.target.shape


def test_velocity_of_two_equals_the_velocities_of_each(case: Case) -> None:
    randomise(case.backbone)
    both = predict(case, case.backbone.encode(case.batch), case.noise, [0.9, 0.2])
    for i, sigma in enumerate([0.9, 0.2]):
        alone = predict(case, case.backbone.encode(part(case.batch, i)), case.noise[i : i + 1], [sigma])
        assert (alone[0] - both[i]).norm() / both[i].norm() < BATCH_TOLERANCE


def test_identical_samples_with_identical_noise_get_identical_velocities(case: Case) -> None:
    conditioning = case.backbone.encode(part(case.batch, 1, 1))
    velocity = predict(case, conditioning, case.noise[[0, 0]], [0.4, 0.4])
    assert torch.equal(velocity[0], velocity[1])


def test_velocity_depends_on_source_instruction_sigma_and_adapter(case: Case) -> None:
    conditioning = case.backbone.encode(case.batch)
    plain = predict(case, conditioning, case.noise, [0.6, 0.6])
    other_source = replace(conditioning, sources=(conditioning.sources[0].flip(0),))
    other_text = replace(conditioning, text={name: value.flip(0) for name, value in conditioning.text.items()})
    noisy = 0.4 * conditioning.target + 0.6 * case.noise
    with torch.no_grad():
        other_sigma = case.backbone.velocity(case.backbone.denoiser, noisy, torch.tensor([0.5, 0.5]), conditioning)
    randomise(case.backbone)
    changed = [
        predict(case, other_source, case.noise, [0.6, 0.6]),
        predict(case, other_text, case.noise, [0.6, 0.6]),
        other_sigma,
        predict(case, conditioning, case.noise, [0.6, 0.6]),
    ]
    # Far above rounding, far below the smallest effect seen.
    assert all((value - plain).norm() / plain.norm() > 1e-4 for value in changed)


def test_only_the_adapter_trains_and_all_of_it_does(case: Case) -> None:
    randomise(case.backbone)
    conditioning = case.backbone.encode(case.batch)
    velocity = case.backbone.velocity(case.backbone.denoiser, case.noise, torch.tensor([0.9, 0.5]), conditioning)
    velocity.square().mean().backward()
    parameters = dict(case.backbone.denoiser.named_parameters())
    trained = {name for name, value in parameters.items() if value.grad is not None and value.grad.abs().max() > 0}
    assert len(trained) == len(adapter_state(case.backbone.denoiser))
    assert all("lora_" in name for name in trained)
    assert {name for name, value in parameters.items() if value.requires_grad} == trained
    case.backbone.denoiser.zero_grad()


def test_edit_has_the_form_of_the_source_and_repeats(case: Case) -> None:
    first, second = edit(case, case.batch, [1, 2]), edit(case, case.batch, [1, 2])
    assert first.dtype == torch.uint8
    assert first.shape == (2, 3, *case.backbone.sizes_of(*STORED).output)
    assert torch.equal(first, second)
    assert not torch.equal(first, edit(case, case.batch, [3, 4]))


def test_edit_does_not_depend_on_the_batch(case: Case) -> None:
    both = edit(case, case.batch, [1, 2])
    for i in (0, 1):
        alone = edit(case, part(case.batch, i), [i + 1])
        difference = (alone[0].int() - both[i].int()).abs()
        # Float rounding may tip a value over the edge between two of 256 levels.
        assert difference.max() <= 1
        assert (difference > 0).float().mean() < 0.01


def test_edit_leaves_training_as_it_was(case: Case) -> None:
    case.backbone.denoiser.train()
    torch.manual_seed(11)
    state = torch.get_rng_state()
    edit(case, case.batch, [1, 2])
    assert case.backbone.denoiser.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.requires_grad for name, p in case.backbone.denoiser.named_parameters() if "lora_" in name)
    case.backbone.denoiser.eval()


def test_new_adapter_is_the_base_bit_for_bit(case: Case) -> None:
    conditioning = case.backbone.encode(case.batch)
    with_zero_b = predict(case, conditioning, case.noise, [0.9, 0.2]), edit(case, case.batch, [1, 2])
    with without_adapter(case.backbone.denoiser):
        base = predict(case, conditioning, case.noise, [0.9, 0.2]), edit(case, case.batch, [1, 2])
    assert torch.equal(with_zero_b[0], base[0])
    assert torch.equal(with_zero_b[1], base[1])


def test_presets_have_the_common_names_and_match_something(case: Case) -> None:
    assert set(case.backbone.lora_presets) == PRESETS
    counts = {}
    for name, targets in case.backbone.lora_presets.items():
        report = add_adapter(case.build().denoiser, LoraSettings(2, 2.0), targets=targets, seed=0)
        counts[name] = len(report.names)
    assert 0 < counts["attention"] < counts["attention_mlp"] < counts["all_linear"]
    assert 0 < counts["image_stream"] < counts["attention_mlp"]


def test_adapter_file_brings_back_every_bit(case: Case, tmp_path: Path) -> None:
    state = randomise(case.backbone)
    case.backbone.save_adapter(adapter_state(case.backbone.denoiser), str(tmp_path), AdapterFormat(4, 8.0))
    loaded = read_adapter(tmp_path)
    assert loaded.keys() == state.keys()
    assert all(torch.equal(loaded[name], value) for name, value in state.items())
    assert all(value.dtype == torch.float32 for value in loaded.values())
    assert read_adapter_format(tmp_path) == AdapterFormat(rank=4, alpha=8.0)


def test_halves_of_single_pairs_make_the_conditioning_of_their_batch_bit_for_bit(case: Case) -> None:
    whole, backbone = case.backbone.encode(case.batch), case.backbone
    backbone.forget()
    alone = [part(case.batch, i) for i in (0, 1)]
    latents = [latents_as_tensors(backbone.encode_pictures(each)) for each in alone]
    text = backbone.join_text([backbone.encode_text(each.given, each.instructions) for each in alone])
    device = torch.device("cpu")
    joined = join(joined_latents([latents_from_tensors(each, device) for each in latents]), text)
    assert torch.equal(joined.target, whole.target)
    assert torch.equal(joined.change, whole.change)
    assert all(torch.equal(*pair) for pair in zip(joined.sources, whole.sources, strict=True))
    assert joined.text.keys() == whole.text.keys()
    assert all(torch.equal(value, whole.text[name]) for name, value in joined.text.items())
    assert joined.time_shift == whole.time_shift


def test_text_depends_on_pictures_where_it_is_said_to(case: Case) -> None:
    first, second = (case.backbone.encode_text((pictures,), ("Remove it.",)) for pictures in case.batch.given)
    is_same = all(torch.equal(value, second[name]) for name, value in first.items())
    assert is_same is not case.backbone.text_sees_pictures
    if not case.backbone.text_sees_pictures:
        assert all(
            torch.equal(value, first[name]) for name, value in case.backbone.encode_text((), ("Remove it.",)).items()
        )


def test_encoding_key_repeats_and_knows_no_adapter(case: Case) -> None:
    other = case.build()
    assert other.encoding_key == case.backbone.encoding_key != other.fingerprint


def test_fingerprint_names_the_base_alone(case: Case) -> None:
    other = case.build()
    before = other.fingerprint
    assert before == case.backbone.fingerprint
    add_adapter(other.denoiser, LoraSettings(2, 2.0), targets=other.lora_presets["attention"], seed=1)
    assert case.build().fingerprint == before


def test_the_editor_has_steps_and_guidance_of_its_own(case: Case) -> None:
    assert case.backbone.default_num_steps >= 2
    assert case.backbone.default_guidance >= 0


def test_what_edits_encode_can_be_kept_in_a_folder_and_changes_no_bit(case: Case, tmp_path: Path) -> None:
    expected = edit(case, case.batch, [1, 2])
    for _ in range(2):  # the second time from the folder alone
        case.backbone.forget()
        with case.backbone.keeping_encoded(tmp_path):
            assert torch.equal(edit(case, case.batch, [1, 2]), expected)
    files = {file: file.read_bytes() for file in tmp_path.rglob("*.safetensors")}
    assert len(files) >= 4  # two pictures, two instructions
    case.backbone.forget()
    with case.backbone.keeping_encoded(tmp_path):
        edit(case, case.batch, [1, 2])
    assert {file: file.read_bytes() for file in tmp_path.rglob("*.safetensors")} == files
