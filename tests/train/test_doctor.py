"""``physedit doctor`` finds what would end a run, says what to do, and leaves nothing behind."""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.faults import FAULTS, Bench, absent_judge, clock_off
from tests.support.judge_server import judge_server
from tests.support.runs import smoke_overrides
from typer.testing import CliRunner

from physedit.train.cli import app
from physedit.train.compose import compose_config
from physedit.train.config import ConfigError
from physedit.train.doctor import examine as examining
from physedit.train.doctor import machine
from physedit.train.doctor.finding import Finding, State, refusal
from physedit.train.doctor.rank import RankFound, bus_bandwidth_gb_s
from physedit.train.doctor.ranks import judged


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from physedit.data_loaders.scenes.write import ensure_world

    folder = tmp_path_factory.mktemp("world") / "scenes"
    ensure_world(folder, num_train=6, num_benchmark=6, seed=7)
    return folder


@pytest.fixture
def bench(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    for name in ("OPENAI_API_KEY", "WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    with ExitStack() as stack:
        yield Bench(world, tmp_path, monkeypatch, stack)


def found(findings: Sequence[Finding], check: str) -> Finding:
    (finding,) = (each for each in findings if each.check == check)
    return finding


def test_a_sound_run_is_found_sound_and_nothing_is_left(bench: Bench) -> None:
    bench.add("eval=scenes", "encode=cached")
    findings = bench.examined()
    assert [each for each in findings if each.state is not State.OK] == []
    assert len(findings) >= 20
    assert found(findings, "batch").found.startswith("2 pair(s) from ")
    assert list(bench.folder.iterdir()) == []


def test_there_are_the_faults_that_the_page_promises() -> None:
    assert len(FAULTS) >= 40


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(bench: Bench, name: str) -> None:
    plant, check, state, words = FAULTS[name]
    plant(bench)
    before = sorted(bench.folder.rglob("*"))
    findings = bench.examined()
    finding = found(findings, check)
    assert (finding.state, words in finding.found) == (state, True), finding
    assert finding.remedy
    assert sorted(bench.folder.rglob("*")) == before


def test_a_fault_is_told_once(bench: Bench) -> None:
    absent_judge(bench)
    assert [each.check for each in bench.examined() if each.state is not State.OK] == ["judge"]


def test_an_answering_judge_is_asked_once(bench: Bench) -> None:
    server = bench.until_end.enter_context(judge_server())
    bench.judge(server.base_url)
    findings = bench.examined()
    assert found(findings, "judge").state is State.OK
    assert len(server.asked) == 1
    assert list(bench.folder.iterdir()) == []


def test_qwens_positions_are_seen_to_be_kept(bench: Bench) -> None:
    bench.add("backbone=toy_qwen_image_edit")
    finding = found(bench.examined(), "positions")
    assert finding.state is State.OK


def test_a_world_that_is_yet_to_be_written_is_not_written(bench: Bench) -> None:
    bench.add("scenes.write=true", f"scenes.folder={bench.folder / 'later'}", "eval=scenes")
    findings = bench.examined()
    assert [each for each in findings if each.state is not State.OK] == []
    assert "written when the run starts" in found(findings, "data").found
    assert "a made-up pair" in found(findings, "batch").found
    assert list(bench.folder.iterdir()) == []


def invoked(*arguments: str) -> Any:
    result = CliRunner().invoke(app, ["doctor", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_the_command_prints_json_and_ends_with_1_at_an_error(bench: Bench) -> None:
    given = smoke_overrides(bench.world, bench.folder / "runs", "run", ["data.path=no/pairs"])
    said = invoked(*given, "--json")
    assert said.exit_code == 1
    lines = json.loads(said.stdout)
    assert all(set(line) == {"check", "state", "found", "remedy"} for line in lines)
    assert [line["check"] for line in lines if line["state"] == "error"] == ["data"]
    assert all(line["remedy"] for line in lines if line["state"] != "ok")


def test_the_command_ends_with_0_at_a_warning(bench: Bench) -> None:
    clock_off(5.0)(bench)
    said = invoked(*smoke_overrides(bench.world, bench.folder / "runs", "run", []))
    assert said.exit_code == 0
    assert "1 warning, 0 error" in said.stdout
    assert "by NTP" in said.stdout


def test_a_config_that_cannot_be_composed_is_refused(bench: Bench) -> None:
    with pytest.raises(ConfigError, match="optimizer"):
        invoked("optimizer.lrr=1")


def test_a_refusal_is_split_into_what_was_found_and_what_to_do() -> None:
    finding = refusal("data", ConfigError("data: no such path as a.b/c. Set data.path."))
    assert finding == Finding("data", State.ERROR, "data: no such path as a.b/c.", "Set data.path.")
    assert refusal("data", ConfigError("it fails")).remedy


def rank(number: int, **changes: Any) -> RankFound:
    measured: dict[str, Any] = {
        "rank": number, "host": "node0", "device": "cpu", "barrier_s": 0.001, "bandwidth_gb_s": 1.0,
        "clock_s": 1000.0, "file_skew_s": 0.0, "sees_all": True, "fault": "",
    }  # fmt: skip
    return RankFound(**measured | changes)


@pytest.mark.parametrize(
    ("changes", "check", "state", "words"),
    [
        ({"fault": "PermissionError: Permission denied"}, "rank 2", State.ERROR, "cannot be written"),
        ({"sees_all": False}, "rank 2", State.ERROR, "does not see"),
        ({"file_skew_s": 9.0}, "rank 2", State.WARNING, "+9.0 s off"),
        ({"bandwidth_gb_s": 0.2}, "rank 2", State.WARNING, "slow"),
        ({"clock_s": 1007.0}, "ranks' clocks", State.ERROR, "7.0 s apart"),
    ],
)
def test_a_rank_unlike_the_others_is_found(changes: dict[str, Any], check: str, state: State, words: str) -> None:
    findings = judged([rank(0), rank(1), rank(2, **changes)], Path("runs"))
    assert [(each.check, each.state) for each in findings if each.state is not State.OK] == [(check, state)]
    assert words in found(findings, check).found


def test_like_ranks_are_sound() -> None:
    assert {each.state for each in judged([rank(0), rank(1)], Path("runs"))} == {State.OK}


def test_the_bandwidth_of_two_ranks_is_that_of_the_bytes() -> None:
    assert bus_bandwidth_gb_s(10**9, 0.5, 2) == 2.0
    assert bus_bandwidth_gb_s(10**9, 0.5, 4) == 3.0


@pytest.mark.slow
def test_two_processes_meet_and_measure(bench: Bench) -> None:
    given = smoke_overrides(bench.world, bench.folder / "runs", "run", [])
    findings = list(examining.check_ranks(compose_config(given), given))
    assert [each.check for each in findings] == ["rank 0", "rank 1", "ranks' clocks"]
    assert {each.state for each in findings} <= {State.OK, State.WARNING}
    assert all("GB/s" in each.found for each in findings[:2])
    assert list(bench.folder.iterdir()) == []


def test_gpus_are_named_with_their_driver(bench: Bench) -> None:
    driver = bench.folder / "version"
    driver.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\nGCC\n")
    bench.patch.setattr(machine, "_DRIVER", driver)
    bench.patch.setattr(machine.torch.cuda, "is_available", lambda: True)
    bench.patch.setattr(machine.torch.cuda, "device_count", lambda: 2)
    card = SimpleNamespace(name="H200", total_memory=140 * 2**30)
    bench.patch.setattr(machine.torch.cuda, "get_device_properties", lambda _index: card)
    bench.patch.setattr(machine.torch.cuda, "is_bf16_supported", lambda **_options: False)
    config = compose_config(smoke_overrides(bench.world, bench.folder, "run", ["launch=ddp"]))
    assert machine.check_gpus(config).found == "2 GPU(s): H200 140 GiB, H200 140 GiB; driver 570.86.15"
    assert machine.check_attention().found == "no bfloat16 on this GPU"
