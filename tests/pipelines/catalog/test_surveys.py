"""Which surveys a table is made of is known whatever it went through."""

from pathlib import Path

import numpy as np
import pytest

from pipelines.base.errors import InputError
from pipelines.catalog.ingest import ingest
from pipelines.catalog.provenance import surveys
from pipelines.catalog.schema import read_stars

HEADER = "name,l,b,dist_pc,dist_lo_pc,dist_hi_pc,av,av_lo,av_hi"
PLAIN = (
    "source_id=name",
    "l=l:deg",
    "b=b:deg",
    "distance=dist_pc:pc",
    "distance_error=5:pc",
    "extinction=av:mag",
    "extinction_error=av_lo:mag",
)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A few clusters under the columns of the preset hunt2023."""
    lines = [HEADER]
    for i, distance in enumerate(np.linspace(200, 900, 8)):
        place = f"{40 * i},0.5,{distance},{distance - 5},{distance + 5}"
        lines.append(f"star{i},{place},0.4,0.3,0.5")
    path = tmp_path / "clusters.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def bands(path: Path) -> list[tuple[str, str]]:
    told = surveys(read_stars(path).meta)
    return [(one["name"], one["band"]) for one in told]


def test_a_survey_is_known_after_joining(source, tmp_path):
    ingest([source], tmp_path / "one.parquet", preset="hunt2023")
    ingest([tmp_path / "one.parquet"], tmp_path / "two.parquet")
    ingest([tmp_path / "two.parquet"], tmp_path / "folder")
    ingest([tmp_path / "folder"], tmp_path / "four.parquet")
    for name in ("one.parquet", "two.parquet", "folder", "four.parquet"):
        assert bands(tmp_path / name) == [("hunt2023", "A_V")], name
    told = surveys(read_stars(tmp_path / "four.parquet").meta)
    assert "doi:10.1051/0004-6361/202346285" in told[0]["references"][0]


def test_the_survey_s_band_does_not_hold_for_another_column(source, tmp_path):
    output = tmp_path / "stars.parquet"
    error = "extinction_error=av_lo:mag"
    taken = ["extinction=av_hi:mag", error]
    ingest([source], output, preset="hunt2023", mappings=taken)
    assert bands(output) == [("hunt2023", "")]
    # Another error leaves the extinction what it was.
    ingest([source], output, preset="hunt2023", mappings=[error], overwrite=True)
    assert bands(output) == [("hunt2023", "A_V")]


def test_a_table_without_a_survey_among_others_is_not_forgotten(source, tmp_path):
    ingest([source], tmp_path / "known.parquet", preset="hunt2023")
    other = source.with_name("others.csv")
    other.write_text(source.read_text().replace("star", "other"))
    ingest([other], tmp_path / "unknown.parquet", mappings=PLAIN)
    both = [tmp_path / "known.parquet", tmp_path / "unknown.parquet"]
    with pytest.raises(InputError, match=r"unknown.parquet.*--declare-band"):
        ingest(both, tmp_path / "both.parquet")
    ingest(both, tmp_path / "both.parquet", declare_band="A_V")
    assert bands(tmp_path / "unknown.parquet") == [("", "")]
    assert bands(tmp_path / "both.parquet") == [("hunt2023", "A_V"), ("", "A_V")]


def test_the_band_of_one_s_own_catalogue_can_be_said(source, tmp_path):
    output = tmp_path / "stars.parquet"
    ingest([source], output, mappings=PLAIN, declare_band="A_G")
    assert bands(output) == [("", "A_G")]
    ingest([output], tmp_path / "again.parquet")
    assert bands(tmp_path / "again.parquet") == [("", "A_G")]
    with pytest.raises(InputError, match="A_V, not A_0"):
        ingest([source], output, preset="hunt2023", declare_band="A_0", overwrite=True)
    for option in ("band", "declare_band"):
        with pytest.raises(InputError, match="'visual' is not an extinction band"):
            ingest([source], output, mappings=PLAIN, **{option: "visual"})
