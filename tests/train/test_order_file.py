"""What a run does with an order.json that is damaged or gone."""

import logging
from pathlib import Path

import pytest

from physedit.eval_hooks.files import DamagedFileError
from physedit.train.compose import compose_config
from physedit.train.order import check_same_data
from physedit.train.processes import Processes


def check(folder: Path) -> None:
    config = compose_config(["experiment=smoke", f"output_root={folder}"])
    check_same_data({"data": "fingerprint"}, config, folder, 4, Processes(1))


@pytest.mark.parametrize("content", ["{}", '{"order": 3}', "[]", "{"])
def test_a_damaged_order_is_not_to_be_deleted_without_a_word_of_what_is_lost(tmp_path: Path, content: str) -> None:
    (tmp_path / "order.json").write_text(content)
    with pytest.raises(DamagedFileError, match=r"order\.json is damaged: .*goes on without that check") as refused:
        check(tmp_path)
    assert "to redo it" not in str(refused.value)


def test_without_an_order_the_run_goes_on_and_says_that_the_data_is_not_checked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        check(tmp_path)
    (message,) = caplog.messages
    assert "order.json is not there" in message
    assert "make sure that it has not changed" in message
