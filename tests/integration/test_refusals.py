"""Bad input ends in one paragraph and exit code 2, with nothing written. benchmarks/refusals.py measures how soon."""

import pytest
from tests.support.runs import physedit

REFUSED = [
    (["experiment=demo", "optimiser.lr=1"], ["optimiser.lr", "optimizer"]),
    (["experiment=demo", "+optimizer.lrr=1"], ["optimizer.lrr", "lr"]),
    (["experiment=demo", "data=scenez"], ["scenez", "scenes"]),
    (["num_steps=4"], ["run_name", "global_batch"]),
    (["experiment=demo", "scenes.write=false", "scenes.folder=nowhere/scenes"], ["nowhere/scenes"]),
    (["experiment=demo", "backbone.weights=./nowhere/weights"], ["nowhere/weights"]),
    (["experiment=demo", "global_batch=12"], ["global_batch=12", "8"]),
]


@pytest.mark.parametrize(("overrides", "words"), REFUSED, ids=[" ".join(o) for o, _ in REFUSED])
def test_bad_input_is_refused_in_one_line(tmp_path, overrides, words):
    result = physedit("train", *overrides, cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    assert "Traceback" not in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    for word in words:
        assert word in result.stderr
    assert list(tmp_path.iterdir()) == [], "something was written"
