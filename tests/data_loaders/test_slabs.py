import gc

import pytest
import torch

from physedit.data_loaders.slabs import Filled, Slabs, slabs_for

PICTURES = [torch.full((3, 2, 4), 7, dtype=torch.uint8), torch.arange(18, dtype=torch.uint8).view(3, 2, 3)]


def fill(slabs: Slabs, worker: int, pictures: list[torch.Tensor]) -> Filled | None:
    slab = slabs.opened(worker)
    return None if slab is None else slab.filled(pictures)


def test_pictures_come_back_from_their_slab() -> None:
    slabs = Slabs(2, 2, 100)
    filled = fill(slabs, 1, PICTURES)
    assert filled is not None
    for found, given in zip(slabs.pictures(filled), PICTURES, strict=True):
        assert torch.equal(found, given)


def test_a_slab_is_filled_again_only_when_the_last_picture_in_it_is_gone() -> None:
    slabs = Slabs(1, 1, 100)
    filled = fill(slabs, 0, PICTURES)
    assert filled is not None
    first, second = slabs.pictures(filled)
    view = second[:1]
    del second
    assert fill(slabs, 0, PICTURES) is None
    del first
    gc.collect()
    assert fill(slabs, 0, PICTURES) is None
    assert torch.equal(view, PICTURES[1][:1])
    del view
    gc.collect()
    assert fill(slabs, 0, PICTURES) is not None


def test_workers_have_slabs_of_their_own() -> None:
    slabs = Slabs(2, 1, 100)
    one, other = fill(slabs, 0, PICTURES), fill(slabs, 1, [255 - picture for picture in PICTURES])
    assert one is not None
    assert other is not None
    assert torch.equal(slabs.pictures(one)[0], PICTURES[0])
    assert torch.equal(slabs.pictures(other)[0], 255 - PICTURES[0])


def test_pictures_that_are_too_large_take_another_way() -> None:
    slabs = Slabs(1, 1, 41)
    assert fill(slabs, 0, PICTURES) is None
    assert fill(slabs, 0, PICTURES[:1]) is not None


def test_without_workers_there_are_no_slabs() -> None:
    assert slabs_for(0, 4, 100) is None


@pytest.mark.parametrize("num_bytes", [100, 2**50])
def test_slabs_stay_within_the_shared_memory_there_is(num_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("physedit.data_loaders.slabs.MAX_BYTES", 4000)
    slabs = slabs_for(2, 2, num_bytes)
    assert slabs is not None
    assert fill(slabs, 0, [torch.zeros(3, 1, 1 + min(num_bytes, 1000) // 3, dtype=torch.uint8)]) is None
    assert fill(slabs, 0, PICTURES) is not None


def test_pictures_that_were_made_in_the_slab_are_not_copied_and_others_join_them() -> None:
    slabs = Slabs(1, 1, 100)
    slab = slabs.opened(0)
    assert slab is not None
    made = slab.place(2, 4)
    made.copy_(PICTURES[0])
    filled = slab.filled([made, PICTURES[1], made])
    assert filled is not None
    first, second, third = slabs.pictures(filled)
    assert first.data_ptr() == third.data_ptr()
    made.fill_(9)
    assert first.unique().tolist() == [9]
    assert torch.equal(second, PICTURES[1])
    turned = slabs.opened(0)
    assert turned is None


def test_a_turned_view_of_a_picture_in_the_slab_arrives_as_it_looks() -> None:
    slabs = Slabs(1, 1, 100)
    slab = slabs.opened(0)
    assert slab is not None
    made = slab.place(2, 3).copy_(PICTURES[1])
    filled = slab.filled([made.flip(2), made.transpose(1, 2)])
    assert filled is not None
    flipped, transposed = slabs.pictures(filled)
    assert torch.equal(flipped, PICTURES[1].flip(2))
    assert torch.equal(transposed, PICTURES[1].transpose(1, 2))


def test_a_slab_without_room_gives_other_memory_and_stays_free() -> None:
    slabs = Slabs(1, 1, 30)
    slab = slabs.opened(0)
    assert slab is not None
    pictures = [slab.place(2, 4).copy_(PICTURES[0]), slab.place(2, 3).copy_(PICTURES[1])]
    assert slab.filled(pictures) is None
    assert fill(slabs, 0, PICTURES[:1]) is not None
