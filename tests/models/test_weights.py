from pathlib import Path

import pytest
import torch
from torch import nn

from physedit.models.flux_kontext import FluxKontext
from physedit.models.random_tiny import build_random_tiny
from physedit.models.weights import find_weights, hash_folder, hash_modules, split_revision


def test_folder_of_a_pipeline_is_found(tmp_path: Path) -> None:
    (tmp_path / "model_index.json").touch()
    assert find_weights(str(tmp_path), "flux_kontext") == tmp_path.resolve()


def test_hub_id_is_left_to_the_hub() -> None:
    hub_id = "black-forest-labs/FLUX.1-Kontext-dev"
    assert find_weights(hub_id, "flux_kontext") == hub_id
    assert find_weights(f"{hub_id}@main", "flux_kontext") == f"{hub_id}@main"
    assert split_revision(f"{hub_id}@main") == (hub_id, "main")
    assert split_revision(hub_id) == (hub_id, None)


@pytest.mark.parametrize("weights", ["./absent", "/absent/folder", "absent", "a/b/c", ""])
def test_path_that_does_not_exist_is_refused(weights: str) -> None:
    with pytest.raises(ValueError, match=r"backbone\.weights is .*(does not exist|holds no model_index\.json)"):
        find_weights(weights, "flux_kontext")


def test_folder_without_index_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"exists but holds no model_index\.json"):
        find_weights(str(tmp_path), "flux_kontext")


def test_folder_hash_follows_names_and_bytes_alone(tmp_path: Path) -> None:
    hashes = []
    for folder, name, text in (("a", "x", "1"), ("b", "x", "1"), ("c", "x", "2"), ("d", "y", "1")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(text)
        hashes.append(hash_folder(tmp_path / folder))
    assert hashes[0] == hashes[1]
    assert len(set(hashes)) == 3


def test_module_hash_follows_every_weight_and_dtype() -> None:
    module = nn.Linear(3, 2)
    before = hash_modules(module)
    assert hash_modules(module) == before
    assert hash_modules(nn.Linear(3, 2).bfloat16()) != before
    with torch.no_grad():
        module.bias[1] += 1
    assert hash_modules(module) != before


def open_(weights: Path | str, dtype: str = "float32") -> FluxKontext:
    return FluxKontext(weights=str(weights), dtype=dtype, max_text_tokens=24, area_px=1024)


def test_saved_pipeline_is_the_same_editor_with_a_fingerprint_of_its_files(tmp_path: Path) -> None:
    build_random_tiny(0).save_pretrained(tmp_path)
    stored = open_(tmp_path)
    built = open_("random_tiny")
    picture = torch.randint(0, 256, (3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))

    def edit(backbone: FluxKontext) -> torch.Tensor:
        generators = [torch.Generator().manual_seed(2)]
        return backbone.edit(
            backbone.denoiser, [(picture,)], ["add a lamp"], num_steps=2, guidance=2.5, generators=generators
        )

    assert torch.equal(edit(stored), edit(built))
    again = open_(tmp_path)
    assert again.fingerprint == stored.fingerprint
    assert open_(tmp_path, "bfloat16").fingerprint != stored.fingerprint
    weights = tmp_path / "vae" / "diffusion_pytorch_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    assert open_(tmp_path).fingerprint != stored.fingerprint


def test_random_tiny_is_the_same_in_every_build() -> None:
    first, second = build_random_tiny(0), build_random_tiny(0)
    assert hash_modules(first.transformer, first.vae) == hash_modules(second.transformer, second.vae)
    assert first.tokenizer.get_vocab() == second.tokenizer.get_vocab()
    assert first.tokenizer_2.get_vocab() == second.tokenizer_2.get_vocab()
    assert hash_modules(build_random_tiny(1).transformer) != hash_modules(first.transformer)
