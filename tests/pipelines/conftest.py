"""A mock through the whole command line, and a small run on a field known exactly."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import one_cloud
import pytest
from click.testing import CliRunner, Result
from filelock import FileLock

from pipelines.catalog.schema import Stars, write_stars
from pipelines.cli import main
from pipelines.config import FitConfig
from pipelines.cubes.sky import SkyMaps
from pipelines.fit import FitReport, fit
from pipelines.maps.opening import open_run
from pipelines.maps.rays import PixelRays
from pipelines.maps.stored import Stored
from pipelines.model.plan import Plan
from pipelines.run import kriged
from pipelines.run.folder import Run, read_run

mpl.use("Agg")

Command = Callable[[str], Result]
Shared = Callable[[str, Callable[[Path], object]], Path]


def call(line: str) -> Result:
    """Run ``dustmap LINE``; whatever happens, nobody may see a traceback."""
    result = CliRunner().invoke(main, shlex.split(line))
    stray = result.exception
    assert stray is None or isinstance(stray, SystemExit), repr(stray)
    assert "Traceback" not in result.output
    return result


@pytest.fixture(scope="session")
def command() -> Command:
    """``command("verb arguments")``: the command line, in this process."""
    return call


class Finished(NamedTuple):
    """A folder with everything a chain of commands left, and what each printed."""

    folder: Path
    said: dict[str, str]


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Shared:
    """``shared(name, make)``: a folder that the first worker to ask for it fills."""
    root = tmp_path_factory.getbasetemp()
    # Workers of one run have neighbouring folders.
    root = root if worker_id == "master" else root.parent

    def made(name: str, make: Callable[[Path], object]) -> Path:
        folder, done = root / name, root / f"{name}.done"
        with FileLock(root / f"{name}.lock"):
            if not done.exists():
                folder.mkdir()
                make(folder)
                done.touch()
        return folder

    return made


@pytest.fixture(scope="session")
def chain(shared: Shared) -> Finished:
    """Catalogue in, map and figures out, on a mock of 3,000 stars."""
    folder = shared("chain", run_chain)
    return Finished(folder, json.loads((folder / "said").read_text()))


def run_chain(folder: Path) -> None:
    small = "truth.half_x=600 truth.half_y=600 truth.half_z=200 truth.spacing=40"
    settings = " ".join(f"--set {pair}" for pair in small.split())
    lines = (
        f"simulate -o mock.parquet --truth truth.zarr --stars 3000 --seed 3 {settings}",
        "ingest mock.parquet --preset mock -o stars.parquet",
        # A lengthscale that is given makes learning the rest a matter of seconds.
        "fit stars.parquet -o run --set box.spacing=120 --set inference.samples=8 "
        "--set prior.lengthscale=200",
        "predict run stars.parquet -o predicted.parquet",
        "export run --zarr map.zarr --fits map.fits --healpix map.healpix.fits "
        "--nside 8",
        "plot run -o figures --kind sky --nside 8 --dpi 60",
    )
    said = {}
    with pytest.MonkeyPatch.context() as place:
        place.chdir(folder)
        for line in lines:
            result = call(line)
            assert result.exit_code == 0, f"{line}: {result.output}"
            said[line.split()[0]] = result.output
    (folder / "said").write_text(json.dumps(said))


@pytest.fixture(scope="session")
def cloud_stars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stars around the cloud of `one_cloud`."""
    path = tmp_path_factory.mktemp("cloud") / "stars.parquet"
    write_stars(path, one_cloud.catalogue(2000), overwrite=False)
    return path


@pytest.fixture(scope="session")
def cloud_report(cloud_stars: Path) -> FitReport:
    """A fit of these stars, by the engine full-batch."""
    config = FitConfig.model_validate(one_cloud.settings())
    return fit(cloud_stars, cloud_stars.parent / "run", config)


@pytest.fixture(scope="session")
def cloud_run(cloud_report: FitReport) -> Run:
    """What that fit left behind."""
    return read_run(cloud_report.output)


@pytest.fixture(scope="session")
def positive_run(shared: Shared) -> Run:
    """The same field by a lognormal density, the default."""

    def make(folder: Path) -> None:
        write_stars(folder / "stars.parquet", one_cloud.catalogue(800), overwrite=False)
        config = FitConfig.model_validate(one_cloud.positive_settings())
        fit(folder / "stars.parquet", folder / "run", config)

    return read_run(shared("positive", make) / "run")


@pytest.fixture(scope="session")
def positive_store(positive_run: Run) -> Stored:
    """The map of this run."""
    return open_run(positive_run.path)


@pytest.fixture(scope="session")
def positive_maps(positive_store: Stored) -> SkyMaps:
    """Its integrated extinction on the store's pixels, at all its distances."""
    assert isinstance(positive_store.rays, PixelRays)
    return positive_store.sky_maps([*positive_store.rays.distance])


@pytest.fixture(scope="session")
def cloud_store(cloud_run: Run) -> Stored:
    """The map of the Gaussian run."""
    return open_run(cloud_run.path)


@pytest.fixture(scope="session")
def svi_run(shared: Shared) -> Run:
    """The same field by the engine svi: few stars on a coarse grid."""
    plain = one_cloud.settings(engine="svi")
    plain["box"]["spacing"] = 175.0
    plain["prior"]["lengthscale"] = 260.0
    plain["svi"] = {"epochs": 5, "nodes": 12, "quadrature": "gauss-legendre"}

    def make(folder: Path) -> None:
        write_stars(folder / "stars.parquet", one_cloud.catalogue(500), overwrite=False)
        fit(folder / "stars.parquet", folder / "run", FitConfig.model_validate(plain))

    return read_run(shared("svi", make) / "run")


@pytest.fixture(scope="module")
def one_baseline() -> Iterator[None]:
    """The kriging of a run is learnt once: most of the time of a comparison."""
    learn, kept = kriged.learn_baseline, {}

    def once(train: Stars, *given: Any) -> Any:
        key = train.distance.tobytes()
        kept[key] = kept[key] if key in kept else learn(train, *given)
        return kept[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kriged, "learn_baseline", once)
        yield


@pytest.fixture
def doubled_lengthscale(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fits whose first map calls for twice the lengthscale, and a bend."""

    def revised(plan: Plan, *_: object) -> tuple:
        scale, bend = 2 * plan.scales.lengthscale, (0.2, -0.3)
        longer = replace(plan.scales, lengthscale=scale, bend=bend)
        learnt = {"converged": True, "at_edge": False, "stars": 0}
        return longer, {**learnt, "revision": {"gain": 99.0}}

    monkeypatch.setattr("pipelines.fit.shared_noise.revised_prior", revised)
