"""An argument that would have no effect is refused, whatever its value."""

from __future__ import annotations

import numpy as np
import pytest
from astropy import units as u
from astropy.coordinates import SkyCoord

import dustmap
from pipelines.base.errors import InputError
from pipelines.catalog.schema import read_stars
from pipelines.maps.opening import open_other

PLACE = "--l 10 --b 2"
BESIDE = [
    f"query RUN {PLACE} --total --distance 100",
    f"query RUN {PLACE} --at-extinction 0 --distance 100",
    *(
        f"query RUN {PLACE} --at-extinction 0.5 {option}"
        for option in ("--mode mean", "--pct 50", "--total", "--integrated", "--seed 0")
    ),
    *(
        f"query RUN {PLACE} --distance 100 {option}"
        for option in (
            *("--seed 0", "--mode std --seed 1", "-o answers.csv", "--map l=l:deg"),
            *("--preset mock", "--prefix ''", "--overwrite", "--r-v 0"),
        )
    ),
    *(
        f"query RUN STARS -o answers.csv {option}"
        for option in ("--l 0", "--b 0", "--ra 0", "--dec 0", "--distance 0")
    ),
    *(
        f"predict RUN STARS -o answers.csv --distances {option}"
        for option in ("--r-v 0", "--prefix ''", "--band A_G", "--map l=l:deg")
    ),
    *(
        f"export RUN --fits out.fits {option}"
        for option in (
            *("--sphere 0", "--spacing 0", "--sphere -5", "--samples 0", "--nside 0"),
            *("--nside 8", "--distances 100", "--ordering ring", "--pixel 0"),
        )
    ),
    "export RUN --healpix out.fits --sphere 0",
    *(
        f"plot RUN -o figures --kind {kind} {option}"
        for kind, option in (
            ("los", "--distance 0"),
            ("los", "--nside 8"),
            ("sky", "--x 1"),
            ("sky", "--direction 0,0"),
            ("sky", "--other RUN"),
            ("slice", "--factor 2"),
            ("slice", "--other-integrated"),
        )
    ),
    "plot RUN -o figures --factor 2",
    *(
        f"compare RUN {other} -o compared {option}"
        for other in ("STARS", "held-out")
        for option in ("--integrated", "--query mode=mean", "--points 9", "--seed 0")
    ),
    "compare RUN RUN -o compared --differential",
    "compare RUN RUN -o compared --query mode=mean",
    "regress STARS -o fitted --target extinction --split-column b --test-fraction 0.2",
    "ingest PLAIN -o out.parquet --repeats first",
]


@pytest.mark.parametrize("line", BESIDE)
def test_an_option_without_effect_is_refused(
    line, positive_run, command, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "maps.toml").write_text("")
    stars = read_stars(positive_run.path / "stars.parquet")
    assert stars.source_id is not None
    names = {
        "RUN": positive_run.path,
        "STARS": positive_run.path / "stars.parquet",
        "REGISTRY": tmp_path / "maps.toml",
    }
    if "PLAIN" in line:
        from pipelines.catalog.schema import Stars, write_stars

        columns = {n: c for n, c in stars.columns().items() if n != "source_id"}
        plain = Stars.of(columns, {}, {})
        write_stars(tmp_path / "plain.parquet", plain, overwrite=False)
        names["PLAIN"] = tmp_path / "plain.parquet"
    for name, path in names.items():
        line = line.replace(name, str(path))
    result = command(line)
    assert result.exit_code == 2, result.output
    left = {path.name for path in tmp_path.iterdir()}
    assert left <= {"maps.toml", "plain.parquet"}


def test_arguments_without_effect_are_refused_in_python(positive_run, tmp_path):
    run, path = positive_run.path, positive_run.path / "stars.parquet"
    coords = SkyCoord(
        l=[1] * u.deg, b=[2] * u.deg, distance=[90] * u.pc, frame="galactic"
    )
    dust = dustmap.open_map(run)
    table = {name: np.ones(9) for name in ("l", "b", "distance", "extinction")}
    for given in (
        *({"extinction": 0.0}, {"extinction_error": 0.0}, {"distance_error": 0.0}),
        {"survey": ["a"] * 9},
    ):
        for stars in (table, path, str(path)):
            with pytest.raises(InputError, match="no others"):
                dustmap.fit(stars, output=tmp_path / "run", **given)
    for given in ({"declare_band": "A_V"}, {"mappings": ["l=l:deg"]}):
        with pytest.raises(InputError, match="table in memory"):
            dustmap.fit(path, output=tmp_path / "run", **given)
    with pytest.raises(InputError, match="mappings"):
        dustmap.predict(run, coords, mappings=["l=l:deg"])
    for given in ({"integrated": False}, {"query": {"mode": "mean"}}):
        for other in (run, str(run), dust.answers):
            with pytest.raises(InputError, match=next(iter(given))):
                open_other(other, dust.answers, **given)
    for given in ({"nside": 8}, {"axis": "x"}, {"factor": 0.0}):
        with pytest.raises(InputError, match="is for"):
            dust.plot("los", **given)
    assert not list(tmp_path.iterdir())
