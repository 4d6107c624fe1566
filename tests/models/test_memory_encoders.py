"""Encoders resident, offloaded and absent: when they move, and that where they are changes no bit.

The device is the CPU by its other name, ``cpu:0``: work runs there, and a move to it can be told from one to ``cpu``.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import DiffusionPipeline, ModelMixin
from tests.support.memory_editors import EDITORS, Editor, batch_of, edit, velocity
from torch import nn
from transformers import PreTrainedModel

from physedit.models.loading import modules_of
from physedit.models.parts import EncodersAbsentError
from physedit.train.compose import compose_config
from physedit.train.config import ConfigError
from physedit.train.rules import check_rules

DEVICE, HOST = torch.device("cpu:0"), torch.device("cpu")
ENCODERS = {
    "flux_kontext": ("text_encoder", "text_encoder_2"),
    "qwen_image_edit": ("text_encoder",),
}
OTHER_PROMPT = "Make it night."


@pytest.fixture(params=EDITORS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextmanager
def moves_of(backbone: Editor) -> Iterator[list[tuple[str, str]]]:
    """Within the context every move of a part is noted: its name, and ``in`` to the device or ``out`` to the host."""
    moves: list[tuple[str, str]] = []
    parts = modules_of(backbone._pipeline)

    def spy(name: str, part: nn.Module) -> None:
        move = part.to

        def noted(*args: Any, **kwargs: Any) -> nn.Module:
            for device in args:
                if isinstance(device, (torch.device, str)):
                    moves.append((name, "in" if torch.device(device) == DEVICE else "out"))
            return move(*args, **kwargs)

        part.to = noted  # type: ignore[method-assign]

    for name, part in parts.items():
        spy(name, part)
    try:
        yield moves
    finally:
        for part in parts.values():
            del part.to


def offloaded(name: str) -> Editor:
    backbone = EDITORS[name](encoders="offload")
    backbone.to(DEVICE)
    return backbone


def there_and_back(*parts: str) -> list[tuple[str, str]]:
    return sorted((part, way) for part in parts for way in ("in", "out"))


def test_offload_moves_the_denoiser_alone_at_first(name: str) -> None:
    for encoders, others in (("offload", ()), ("resident", (*ENCODERS[name], "vae"))):
        backbone = EDITORS[name](encoders=encoders)
        with moves_of(backbone) as moves:
            backbone.to(DEVICE)
        assert sorted(moves) == sorted((part, "in") for part in ("transformer", *others))


def test_offloaded_encoders_come_once_a_batch_and_only_for_what_is_new(name: str) -> None:
    backbone, text = offloaded(name), ENCODERS[name]
    with moves_of(backbone) as moves:
        backbone.encode(batch_of(1, 2))
        assert sorted(moves) == there_and_back(*text, "vae")
        assert all(moves.index((part, "in")) < moves.index((part, "out")) for part in (*text, "vae"))
        moves.clear()
        backbone.encode(batch_of(2, 1))
        assert moves == []
        backbone.encode(batch_of(1, prompt=OTHER_PROMPT))
        assert sorted(moves) == there_and_back(*text)
        moves.clear()
        backbone.encode(batch_of(1, 3))
        # Qwen's text encoder sees the picture too.
        assert sorted(moves) == there_and_back("vae", *(text if name == "qwen_image_edit" else ()))
        moves.clear()
        backbone.forget()
        backbone.encode(batch_of(1))
        assert sorted(moves) == there_and_back(*text, "vae")


def test_resident_encoders_never_move_again(name: str) -> None:
    backbone = EDITORS[name](encoders="resident")
    backbone.to(DEVICE)
    with moves_of(backbone) as moves:
        backbone.encode(batch_of(1, 2))
        edit(backbone, batch_of(3).sources[0])
    assert moves == []


def test_offloaded_text_encoders_are_gone_while_the_denoiser_runs(name: str) -> None:
    backbone, text = offloaded(name), ENCODERS[name]
    seen: list[tuple[list[tuple[str, str]], list[object], torch.device]] = []

    def look(*_: object) -> None:
        pipeline = backbone._pipeline
        seen.append((list(moves), [getattr(pipeline, part) for part in text], pipeline._execution_device))

    handle = backbone.denoiser.register_forward_pre_hook(look)
    with moves_of(backbone) as moves:
        edit(backbone, batch_of(1).sources[0])
    handle.remove()
    assert len(seen) >= 2
    for before, in_pipeline, device in seen:
        assert sorted(before) == sorted([*there_and_back(*text), ("vae", "in")])
        assert in_pipeline == [None] * len(text)
        assert device.type == "cpu"
    assert sorted(moves) == there_and_back(*text, "vae")
    assert all(getattr(backbone._pipeline, part) is not None for part in text)


def test_an_edit_of_known_text_needs_no_text_encoder(name: str) -> None:
    backbone, source = offloaded(name), batch_of(1).sources[0]
    expected = edit(backbone, source)
    for part in ENCODERS[name]:
        getattr(backbone._pipeline, part).to("meta")
    assert torch.equal(edit(backbone, source), expected)


@pytest.mark.parametrize("encoders", ["resident", "offload"])
def test_repeated_edits_load_nothing_and_encode_text_once(
    name: str, encoders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone, source = EDITORS[name](encoders=encoders), batch_of(1).sources[0]
    runs: list[str] = []
    for part in ENCODERS[name]:
        getattr(backbone._pipeline, part).register_forward_pre_hook(lambda *_, part=part: runs.append(part))

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("something was loaded")

    for loader in (DiffusionPipeline, ModelMixin, PreTrainedModel):
        monkeypatch.setattr(loader, "from_pretrained", refuse)
    first = edit(backbone, source)
    num_runs = len(runs)
    assert set(runs) == set(ENCODERS[name])
    assert all(torch.equal(edit(backbone, source), first) for _ in range(2))
    assert len(runs) == num_runs


def test_offloaded_encoders_leave_after_an_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = offloaded(name)

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(backbone._pipeline.vae, "encode", fail)
    with moves_of(backbone) as moves, pytest.raises(RuntimeError, match="out of memory"):
        backbone.encode(batch_of(1))
    fetched = {part for part, way in moves if way == "in"}
    assert "vae" in fetched
    assert sorted(moves) == there_and_back(*fetched)


def test_offload_changes_no_bit(name: str) -> None:
    resident, other = EDITORS[name](encoders="resident"), offloaded(name)
    first, second = resident.encode(batch_of(1, 2)), other.encode(batch_of(1, 2))
    assert torch.equal(first.target, second.target)
    assert all(torch.equal(*pair) for pair in zip(first.sources, second.sources, strict=True))
    assert first.text.keys() == second.text.keys()
    assert all(torch.equal(first.text[key], second.text[key]) for key in first.text)
    with torch.no_grad():
        assert torch.equal(velocity(resident, first), velocity(other, second))
    source = batch_of(3).sources[0]
    assert torch.equal(edit(resident, source), edit(other, source))
    assert resident.fingerprint == other.fingerprint


@pytest.mark.parametrize("is_stored", [False, True])
def test_absent_text_encoders_are_not_loaded_and_velocity_needs_none(
    name: str, is_stored: bool, tmp_path: Path
) -> None:
    options: dict[str, Any] = {}
    if is_stored:
        EDITORS[name]()._pipeline.save_pretrained(tmp_path)
        options = {"weights": str(tmp_path)}
    resident = EDITORS[name](**options)
    # Weights that are not read may be anything.
    kept = {file: file.read_bytes() for file in tmp_path.glob("text_encoder*/*.safetensors")}
    for file in kept:
        file.write_bytes(b"damaged")
    absent = EDITORS[name](encoders="absent", **options)
    for file, content in kept.items():
        file.write_bytes(content)
    assert set(modules_of(absent._pipeline)) == {"transformer", "vae"}
    conditioning = resident.encode(batch_of(1, 2))
    with torch.no_grad():
        assert torch.equal(velocity(absent, conditioning), velocity(resident, conditioning))
    with pytest.raises(EncodersAbsentError, match=r"backbone\.encoders=absent"):
        absent.encode(batch_of(1))
    with pytest.raises(EncodersAbsentError):
        edit(absent, batch_of(1).sources[0])
    assert absent.fingerprint == resident.fingerprint


def test_training_without_text_encoders_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"backbone\.encoders=absent leaves out .* only training with encode=cached"):
        check_rules(compose_config(["experiment=demo", "backbone.encoders=absent"]))


def test_an_unknown_placement_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"backbone\.encoders is 'gone'; it must be one of resident, offload, absent"):
        EDITORS[name](encoders="gone")


@pytest.mark.parametrize("encoders", ["resident", "offload"])
def test_what_an_edit_encoded_is_taken_from_a_folder_by_a_later_process(
    name: str, encoders: str, tmp_path: Path
) -> None:
    source = batch_of(1).sources[0]
    first, second = EDITORS[name](encoders=encoders), EDITORS[name](encoders=encoders)
    expected = edit(EDITORS[name](encoders=encoders), source, guidance=4.0)
    with first.keeping_encoded(tmp_path):
        assert torch.equal(edit(first, source, guidance=4.0), expected)
    runs: list[str] = []
    for part in ENCODERS[name]:
        getattr(second._pipeline, part).register_forward_pre_hook(lambda *_, part=part: runs.append(part))
    second._pipeline.vae.encoder.register_forward_pre_hook(lambda *_: runs.append("vae"))
    with second.keeping_encoded(tmp_path):
        assert torch.equal(edit(second, source, guidance=4.0), expected)
        assert runs == []
    second.forget()
    assert torch.equal(edit(second, source, guidance=4.0), expected)
    assert set(runs) == {*ENCODERS[name], "vae"}
