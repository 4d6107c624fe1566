import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from physedit.data_loaders import tar_index
from physedit.data_loaders.pairs import Pairs
from physedit.data_loaders.sample import DatasetLayoutError, DatasetRowError, PromptLevel

COLUMNS = {"source": "source.png", "target": "target", "instruction": "txt", "level": "explicit"}
LEVEL = PromptLevel.EXPLICIT


@pytest.fixture(autouse=True)
def _cache(own_arrow_cache: None) -> None:
    """Indexes of shards are kept apart."""


def write_tar(file: Path, members: Mapping[str, bytes], **options: object) -> None:
    with tarfile.open(file, "w", **options) as tar:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def samples(png, keys: range, suffix: str = "png") -> dict[str, bytes]:
    members: dict[str, bytes] = {}
    for i in keys:
        members |= {f"set/{i:03d}.source.PNG": png((i, 0, 0)), f"set/{i:03d}.Target.{suffix}": png((0, 0, i))}
        members[f"set/{i:03d}.TXT"] = f"\ufeffsay {i}\r\n".encode()
    return members


def test_capital_letters_are_read_and_a_sample_without_a_part_is_reported_by_its_key(tmp_path: Path, png) -> None:
    """A21: four samples, the third lacks its target; three pairs arrive."""
    members = samples(png, range(4))
    del members["set/002.Target.png"]
    write_tar(tmp_path / "shard.tar", members)
    data = Pairs(path=str(tmp_path), **COLUMNS)
    assert [data.header(i).problem for i in range(4)] == [None, None, "no target picture", None]
    assert data.name(2).sample_id == "shard.tar:set/002"
    with pytest.raises(DatasetRowError, match=r"Column 'target' in .*shard\.tar, row 2 \(shard\.tar:set/002\)"):
        data.stored(2, LEVEL)
    for i in (0, 1, 3):
        sample = data.sample(i, LEVEL)
        assert (sample.source[0, 0, 0], sample.target[2, 0, 0], sample.instruction) == (i, i, f"say {i}")


def test_shards_come_by_name_and_a_part_may_have_any_ending(tmp_path: Path, png) -> None:
    write_tar(tmp_path / "b.tar", samples(png, range(3, 5), "jpg"))
    write_tar(tmp_path / "a.tar", samples(png, range(3)))
    data = Pairs(path=str(tmp_path), **COLUMNS)
    assert [data.sample(i, LEVEL).target[2, 0, 0] for i in range(5)] == [0, 1, 2, 3, 4]
    assert data.name(4).origin.row == 1
    assert len(Pairs(path=str(tmp_path / "b.tar"), **COLUMNS)) == 2


def test_members_of_one_key_need_not_be_neighbours(tmp_path: Path, png) -> None:
    members = samples(png, range(3))
    write_tar(tmp_path / "shard.tar", dict(sorted(members.items(), key=lambda item: item[0].split(".", 1)[1])))
    data = Pairs(path=str(tmp_path), **COLUMNS)
    assert [data.sample(i, LEVEL).source[0, 0, 0] for i in range(3)] == [0, 1, 2]


def test_texts_and_labels_come_from_the_json_part(tmp_path: Path, png) -> None:
    members: dict[str, bytes] = {}
    for i, law in enumerate(["Reflection", "Refraction", "Reflection"]):
        members |= {f"{i}.source.png": png((i, 0, 0)), f"{i}.target.png": png((0, 0, i))}
        members[f"{i}.json"] = json.dumps({"prompt": f"say {i}", "law": law}).encode()
    members["3.source.png"] = members["3.target.png"] = png((0, 0, 0))
    members["3.json"] = b"{broken"
    write_tar(tmp_path / "shard.tar", members)
    columns = {**COLUMNS, "instruction": "prompt", "law": "law"}
    data = Pairs(path=str(tmp_path), laws=["Reflection"], **columns)
    assert [data.sample(i, LEVEL).instruction for i in range(len(data))] == ["say 0", "say 2"]
    whole = Pairs(path=str(tmp_path), **columns)
    assert [whole.header(i).problem for i in range(4)] == [None, None, None, "line is no row"]
    with pytest.raises(
        DatasetLayoutError, match=r"lacks the columns text\..*found source\.png, target\.png, prompt, law"
    ):
        Pairs(path=str(tmp_path), **{**COLUMNS, "instruction": "text"})


def test_caption_in_another_encoding_is_a_problem_of_its_row(tmp_path: Path, png) -> None:
    write_tar(tmp_path / "shard.tar", samples(png, range(2)) | {"set/001.TXT": b"it\x92s"})
    data = Pairs(path=str(tmp_path), **COLUMNS)
    assert [data.header(i).problem for i in (0, 1)] == [None, "text is not UTF-8"]


def test_shard_is_scanned_once_and_again_when_it_changes(tmp_path: Path, png, monkeypatch: pytest.MonkeyPatch) -> None:
    scans: list[str] = []
    scan = tar_index._scan
    monkeypatch.setattr(tar_index, "_scan", lambda shard: scans.append(shard.name) or scan(shard))
    write_tar(tmp_path / "shard.tar", samples(png, range(2)))
    assert [len(Pairs(path=str(tmp_path), **COLUMNS)) for _ in range(3)] == [2, 2, 2]
    assert scans == ["shard.tar"]
    write_tar(tmp_path / "shard.tar", samples(png, range(20)))
    assert len(Pairs(path=str(tmp_path), **COLUMNS)) == 20
    assert scans == ["shard.tar"] * 2


@pytest.mark.parametrize("kept_share", [0.3, 0.55, 0.8])
def test_shard_that_was_cut_is_refused(tmp_path: Path, png, kept_share: float) -> None:
    write_tar(tmp_path / "shard.tar", samples(png, range(20)))
    data = (tmp_path / "shard.tar").read_bytes()
    cut = int(len(data) * kept_share) // 512 * 512 + 100
    (tmp_path / "shard.tar").write_bytes(data[:cut])
    with pytest.raises(DatasetLayoutError, match=r"shard\.tar is (damaged|no readable tar file)"):
        Pairs(path=str(tmp_path), **COLUMNS)


def test_shard_with_a_broken_header_in_its_middle_is_refused(tmp_path: Path, png) -> None:
    write_tar(tmp_path / "shard.tar", samples(png, range(4)))
    data = bytearray((tmp_path / "shard.tar").read_bytes())
    place = data.index(b"set/002.source.PNG")
    data[place : place + 400] = b"\xff" * 400
    (tmp_path / "shard.tar").write_bytes(data)
    with pytest.raises(DatasetLayoutError, match=r"shard\.tar is damaged at byte"):
        Pairs(path=str(tmp_path), **COLUMNS)


def test_compressed_shard_is_refused(tmp_path: Path, png) -> None:
    import gzip

    write_tar(tmp_path / "plain", samples(png, range(2)))
    (tmp_path / "shard.tar").write_bytes(gzip.compress((tmp_path / "plain").read_bytes()))
    with pytest.raises(DatasetLayoutError, match=r"must be whole and not compressed"):
        Pairs(path=str(tmp_path), **COLUMNS)


def test_part_that_a_key_has_twice_is_refused(tmp_path: Path, png) -> None:
    write_tar(tmp_path / "shard.tar", samples(png, range(1)) | {"set/000.txt": b"other"})
    with pytest.raises(DatasetLayoutError, match=r"holds 'set/000\.txt' twice"):
        Pairs(path=str(tmp_path), **COLUMNS)
