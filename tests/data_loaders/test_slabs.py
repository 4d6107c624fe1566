import gc

import pytest
import torch

from physedit.data_loaders.slabs import Slabs, slabs_for

PICTURES = [torch.full((3, 2, 4), 7, dtype=torch.uint8), torch.arange(18, dtype=torch.uint8).view(3, 2, 3)]


def test_pictures_come_back_from_their_slab() -> None:
    slabs = Slabs(2, 2, 100)
    filled = slabs.fill(1, PICTURES)
    assert filled is not None
    for found, given in zip(slabs.pictures(filled), PICTURES, strict=True):
        assert torch.equal(found, given)


def test_a_slab_is_filled_again_only_when_the_last_picture_in_it_is_gone() -> None:
    slabs = Slabs(1, 1, 100)
    filled = slabs.fill(0, PICTURES)
    assert filled is not None
    first, second = slabs.pictures(filled)
    view = second[:1]
    del second
    assert slabs.fill(0, PICTURES) is None
    del first
    gc.collect()
    assert slabs.fill(0, PICTURES) is None
    assert torch.equal(view, PICTURES[1][:1])
    del view
    gc.collect()
    assert slabs.fill(0, PICTURES) is not None


def test_workers_have_slabs_of_their_own() -> None:
    slabs = Slabs(2, 1, 100)
    one, other = slabs.fill(0, PICTURES), slabs.fill(1, [255 - picture for picture in PICTURES])
    assert one is not None
    assert other is not None
    assert torch.equal(slabs.pictures(one)[0], PICTURES[0])
    assert torch.equal(slabs.pictures(other)[0], 255 - PICTURES[0])


def test_pictures_that_are_too_large_take_another_way() -> None:
    slabs = Slabs(1, 1, 41)
    assert slabs.fill(0, PICTURES) is None
    assert slabs.fill(0, PICTURES[:1]) is not None


def test_without_workers_there_are_no_slabs() -> None:
    assert slabs_for(0, 4, 100) is None


@pytest.mark.parametrize("num_bytes", [100, 2**50])
def test_slabs_stay_within_the_shared_memory_there_is(num_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("physedit.data_loaders.slabs.MAX_BYTES", 4000)
    slabs = slabs_for(2, 2, num_bytes)
    assert slabs is not None
    assert slabs.fill(0, [torch.zeros(3, 1, 1 + min(num_bytes, 1000) // 3, dtype=torch.uint8)]) is None
    assert slabs.fill(0, PICTURES) is not None
