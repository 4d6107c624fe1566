"""In what products are computed. Of float32 matrices: set for every process, and part of what a float32 base is."""

from collections.abc import Iterator

import pytest
import torch
from tests.support.memory_editors import EDITORS

from physedit.train.assemble import start_processes
from physedit.train.compose import compose_config
from physedit.train.config import ConfigError
from physedit.train.rules import check_rules


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


def test_every_start_sets_what_its_config_says():
    start_processes(compose_config(["experiment=smoke", "device=cpu", "float32_matmul_precision=high"]))
    assert torch.get_float32_matmul_precision() == "high"
    start_processes(compose_config(["experiment=smoke", "device=cpu"]))
    assert torch.get_float32_matmul_precision() == "highest"


def test_another_word_is_refused():
    with pytest.raises(ConfigError, match=r"float32_matmul_precision=tf32 is not known\. Use .*=high or"):
        check_rules(compose_config(["experiment=smoke", "float32_matmul_precision=tf32"]))


def test_a_float32_base_is_another_one_and_a_bfloat16_base_is_not():
    exact, coarse = (EDITORS["flux_kontext"](weights="toy", dtype=dtype) for dtype in ("float32", "bfloat16"))
    before = [(base.fingerprint, base.encoding_key) for base in (exact, coarse)]
    torch.set_float32_matmul_precision("high")
    exact, coarse = (EDITORS["flux_kontext"](weights="toy", dtype=dtype) for dtype in ("float32", "bfloat16"))
    after = [(base.fingerprint, base.encoding_key) for base in (exact, coarse)]
    assert after[1] == before[1]
    assert all(new != old for new, old in zip(after[0], before[0], strict=True))


def test_products_of_an_adapter_are_asked_for_by_dtype_and_not_with_dora():
    for given, said in (
        ("adapter.compute_dtype=bf16", r"adapter\.compute_dtype=bf16 is not known\. Use .*float32 or"),
        ("adapter.use_dora=true", r"adapter\.compute_dtype=bfloat16 does not go with adapter\.use_dora=true"),
    ):
        with pytest.raises(ConfigError, match=said):
            compose_config(["experiment=smoke", "adapter.compute_dtype=bfloat16", given])
