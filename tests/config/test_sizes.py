"""The sizes that come with the package, objectives, and numbers with units."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncake_edu.config import SIZES, Config, EngineConfig
from mooncake_edu.errors import ConfigError
from mooncake_edu.model import hub
from mooncake_edu.quantities import Quantity, Slo, SloReader


@pytest.mark.parametrize("name", SIZES)
def test_a_size_names_a_model_of_the_catalogue(name: str) -> None:
    assert Config.size(name).model.name in hub.CATALOGUE


def test_every_configuration_file_is_one_of_the_sizes() -> None:
    import mooncake_edu

    files = (Path(mooncake_edu.__file__).parent / "configs").glob("*.toml")
    assert {file.stem for file in files if file.is_file()} == set(SIZES)


def test_the_cluster_has_the_hardware_of_the_paper() -> None:
    cluster = Config.size("cluster")
    assert cluster.hardware is not None
    assert cluster.hardware.compute == 8 * 312e12
    assert cluster.hardware.host == 128e9
    assert cluster.hardware.network == 800e9 / 8
    assert cluster.slo.ttft.seconds(unloaded=1.0) == 30.0
    assert cluster.slo.tbt.seconds(unloaded=1.0) == 0.1
    assert sum(group.count for group in cluster.instances) == 16
    # 80 layers x K and V x 8 KV heads x 128 channels x 2 bytes (FAST table 1: 320 KB a token)
    assert 3_000_000 <= cluster.tiers.dram // 327_680 <= 3_100_000


def test_an_unknown_size_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"size 'huge' is not known: use one of tiny, cpu, gpu, cluster"):
        Config.size("huge")


@given(st.floats(0.001, 1e5), st.floats(0.001, 1e3))
def test_an_objective_is_absolute_or_a_multiple_of_the_unloaded_value(value: float, unloaded: float) -> None:
    read = SloReader()
    assert read(value).seconds(unloaded) == value
    assert read(f"{value!r}x").seconds(unloaded) == value * unloaded
    assert read(read(value)) == Slo(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1 GiB", 2**30), ("1GB", 10**9), ("1.5 KiB", 1536), ("64 kB", 64_000), ("7 B", 7), (" 2 TiB ", 2 * 2**40)],
)
def test_a_size_in_bytes_is_read_with_its_unit(text: str, value: int) -> None:
    assert EngineConfig(memory=text).memory == value  # type: ignore[arg-type]


def test_a_network_rate_may_be_given_in_bits() -> None:
    rate = Quantity("B/s", "100 GB/s", 1, 10**18)
    assert rate("800 Gbit/s") == rate("100 GB/s") == rate(1e11) == 1e11


@given(st.text(alphabet="0123456789. kKMGTPiBbits/FLO-e", max_size=12))
def test_a_quantity_is_read_within_its_range_or_refused(text: str) -> None:
    read = Quantity("B", "1 GiB", 5, 10**9)
    try:
        value = read(text)
    except ValueError as error:
        assert str(error) == read.allowed
    else:
        assert isinstance(value, int)
        assert 5 <= value <= 10**9
