"""What a backbone keeps of its encoders' work: the same losses as without, under keys of exactly what decides it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from tests.support.memory_editors import EDITORS, batch_of, picture
from tests.support.qwen_editors import PLUS
from torch import Tensor

from physedit.data_loaders.sample import EditBatch
from physedit.models.memo import TensorMemo
from physedit.train.objective import FlowMatching
from physedit.train.rng import draw

BUILDERS: Mapping[str, Callable[..., Any]] = {
    **EDITORS,
    "qwen_plus": lambda **options: EDITORS["qwen_image_edit"](
        **{"pipeline": PLUS, "vision_area_px": 64 * 64, **options}
    ),
}
SEES_PICTURES = {"qwen_image_edit", "qwen_plus"}
"""Editors whose text states depend on the pictures to edit from."""


@dataclass
class Asked:
    """Keys that an encoder's memos were asked for, and how often what they stand for was made."""

    latents: set[str] = field(default_factory=set)
    text: set[str] = field(default_factory=set)
    num_made: int = 0


def spied(editor: Any) -> Asked:
    asked = Asked()
    watch(editor._pictures.memo, asked.latents, asked)
    watch(editor._text._memo, asked.text, asked)
    return asked


def watch(memo: TensorMemo, keys: set[str], asked: Asked) -> None:
    get = memo.get

    def spy(key: str, make: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        keys.add(key)

        def counted() -> tuple[Tensor, ...]:
            asked.num_made += 1
            return make()

        return get(key, counted)

    memo.get = spy  # type: ignore[method-assign]


def keys_of(name: str, batch: EditBatch, **options: Any) -> Asked:
    editor = BUILDERS[name](**options)
    asked = spied(editor)
    editor.encode(batch)
    return asked


BASE = batch_of(1)


def with_pixel(pixels: Tensor) -> Tensor:
    changed = pixels.clone()
    changed[0, 5, 7] ^= 1
    return changed


@pytest.mark.parametrize("name", BUILDERS)
def test_losses_with_and_without_what_is_kept_are_equal(name: str) -> None:
    """Two epochs of four batches, in another order each; the last batch is answered from memory alone."""
    losses: dict[bool, list[Tensor]] = {}
    for keeps in (True, False):
        editor = BUILDERS[name]()
        asked = spied(editor)
        losses[keeps], made = [], []
        for position, seeds in enumerate([(1, 2), (3, 4), (5, 6), (7, 8), (5, 6), (1, 2), (7, 8), (4, 3)]):
            if not keeps:
                editor.forget()
            conditioning = editor.encode(batch_of(*seeds, prompt=f"Remove ball {position % 3 % 2}."))
            with torch.no_grad():
                terms = FlowMatching().loss(
                    lambda noisy, sigma: editor.velocity(editor.denoiser, noisy, sigma, conditioning),  # noqa: B023
                    conditioning,
                    draw(3, (2 * position, 2 * position + 1), conditioning.target),
                )
            losses[keeps].append(terms.per_sample)
            made.append(asked.num_made)
        assert (made[-1] > made[-2]) == (not keeps)
    assert all(torch.equal(kept, anew) for kept, anew in zip(losses[True], losses[False], strict=True))
    assert len({float(value) for each in losses[True] for value in each}) == 16


@pytest.mark.parametrize("name", BUILDERS)
def test_another_caption_changes_the_texts_key_alone(name: str) -> None:
    base, other = keys_of(name, BASE), keys_of(name, replace(BASE, instructions=("Remove the lamp.",)))
    assert base.text.isdisjoint(other.text)
    assert base.latents == other.latents


@pytest.mark.parametrize("name", BUILDERS)
def test_one_other_bit_of_the_source_changes_its_key(name: str) -> None:
    base, other = keys_of(name, BASE), keys_of(name, replace(BASE, sources=(with_pixel(BASE.sources[0]),)))
    assert len(base.latents) == len(other.latents) == 2
    assert len(base.latents & other.latents) == 1  # the target's
    assert (base.text == other.text) == (name not in SEES_PICTURES)


@pytest.mark.parametrize("name", BUILDERS)
def test_one_other_bit_of_the_target_changes_its_key_alone(name: str) -> None:
    base, other = keys_of(name, BASE), keys_of(name, replace(BASE, targets=(with_pixel(BASE.targets[0]),)))
    assert len(base.latents & other.latents) == 1
    assert base.text == other.text


@pytest.mark.parametrize("name", BUILDERS)
def test_another_working_size_changes_the_keys_of_pictures(name: str) -> None:
    base, other = keys_of(name, BASE), keys_of(name, BASE, area_px=96 * 96)
    assert base.latents.isdisjoint(other.latents)
    seen = name == "qwen_image_edit"  # the one whose text encoder sees the picture as it is worked at
    assert (base.text == other.text) == (not seen)


@pytest.mark.parametrize("name", BUILDERS)
def test_a_picture_of_the_same_bytes_and_another_shape_has_another_key(name: str) -> None:
    plain = torch.zeros(3, 32, 128, dtype=torch.uint8)
    wide, tall = (
        replace(BASE, sources=(each,), targets=(each,)) for each in (plain, plain.transpose(1, 2).contiguous())
    )
    assert keys_of(name, wide).latents.isdisjoint(keys_of(name, tall).latents)


@pytest.mark.parametrize("name", BUILDERS)
def test_nothing_else_changes_a_key(name: str) -> None:
    base = keys_of(name, BASE)
    unlike = [
        keys_of(name, replace(BASE, sample_ids=("another",))),
        keys_of(name, replace(BASE, weights=(0.0,))),
        keys_of(name, batch_of(1, 1)),
        keys_of(name, BASE, gradient_checkpointing=True),
        keys_of(name, BASE, encoders="offload"),
    ]
    assert all((each.latents, each.text) == (base.latents, base.text) for each in unlike)
    beside = keys_of(name, batch_of(2, 1))  # in a batch with another pair, and after it
    assert base.latents < beside.latents
    assert base.text <= beside.text


def test_order_and_sizes_of_references_are_part_of_the_texts_key() -> None:
    def keys(*references: Tensor) -> Asked:
        return keys_of("qwen_plus", replace(BASE, references=(references,) if references else ()))

    first, second = picture(5), picture(6)
    found = [keys(), keys(first), keys(first, second), keys(second, first)]
    assert len({frozenset(each.text) for each in found}) == 4
    assert found[2].latents == found[3].latents
