"""Configuration: what is refused, in which words, and what survives a round trip."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.base.errors import InputError
from pipelines.config import FitConfig, SimulateConfig, describe, load_config, to_toml
from pipelines.config.gone import GONE

MODELS = [FitConfig, SimulateConfig]
SPACING = ["box.spacing=50"]


def refusal(overrides, model: type[FitConfig | SimulateConfig] = FitConfig, path=None):
    with pytest.raises(InputError) as caught:
        load_config(model, path, overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("model", MODELS)
def test_the_description_explains_every_key_and_loads_to_the_defaults(model, tmp_path):
    path, lines = tmp_path / "all.toml", describe(model).splitlines()
    path.write_text(describe(model))
    assert load_config(model, path) == model() == load_config(model)
    keys = [i for i, line in enumerate(lines) if " = " in line and line[0] != "#"]
    assert len(keys) > 15
    assert all(lines[i - 1].startswith("#") for i in keys)


def test_the_file_is_read_and_overrides_win_in_order(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('[box]\nspacing = 40\n[prior]\nkernel = "matern52"\nstd = 1e-3\n')
    config = load_config(
        FitConfig,
        path,
        [
            "box.spacing=[20, 20, 10]",
            "prior.std=2e-3",
            "prior.std=auto",
            "prior.lengthscale=50",
        ],
    )
    assert config.prior.lengthscale == (50.0, 50.0, 50.0)
    assert config.box.spacing == (20.0, 20.0, 10.0)
    assert config.prior.kernel == "matern52"
    assert config.prior.std is None


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("box.spacin=3", ["box.spacin", "unknown key", "did you mean box.spacing?"]),
        ("spacing=3", ["unknown key", "did you mean box.spacing?"]),
        ("Box.x=[0,1]", ["Box", "unknown key", "did you mean box?"]),
        ("zzz=1", ["zzz", "unknown key", "box, prior, model"]),
        ("box=3", ["box", "got 3"]),
        ("box.x=[3, 1]", ["box.x", "min < max", "[3.0, 1.0]"]),
        ("box.x=[3, 4]", ["box", "observer", "[3.0, 4.0]"]),
        ("box.x=[nan, 1]", ["box.x[0]", "finite", "nan"]),
        ("box.x=5", ["box.x", "tuple", "got 5"]),
        ("box.shape=[8, 8, 1]", ["box.shape[2]", "equal to 2", "got 1"]),
        ("box.spacing=[1, 2]", ["box.spacing", "got"]),
        ("box.spacing=[-1, 2, 0]", ["box.spacing[0]", "greater", "box.spacing[2]"]),
        ("box.x=-1000,1000", ["a list in brackets"]),
        ("prior.kernel=matern53", ["'matern32'", "'matern53'"]),
        ("prior.std=wide", ["prior.std", "number", "'wide'"]),
        ("model.subgrid_noise=1", ["model.subgrid_noise", "boolean", "got 1"]),
        ("box.levels=13", ["box.levels", "less than or equal to 12", "13"]),
        ("model.degrees=1", ["model.degrees", "greater than 1", "got 1"]),
        ("inference.seed=1.5", ["inference.seed", "integer", "1.5"]),
        ("inference.samples=true", ["inference.samples", "integer", "True"]),
        ("data.holdout=0.5", ["data.holdout", "less than 0.5"]),
        ("no_equals", ["no_equals", "KEY=VALUE"]),
        ("bad key=1", ["bad key", "KEY=VALUE"]),
        ("box.spacing=1 2", ["'1 2'", "TOML value"]),
        ("box.spacing=1\nz = 2", ["neither"]),
    ],
)
def test_a_wrong_override_is_refused_in_one_line(override, words):
    with pytest.raises(InputError) as caught:
        load_config(FitConfig, None, [override])
    message = str(caught.value)
    assert message.startswith(f"--set {override}")
    for word in words:
        assert word in message


def test_settings_are_python_values_by_their_keys():
    settings = {"budget.memory_gib": 2, "box": {"spacing": 50, "x": (-1, 1)}}
    config = load_config(FitConfig, None, ["box.spacing=9", "box.y=[-2,2]"], settings)
    assert config.budget.memory_gib == 2.0
    assert (config.box.spacing, config.box.x, config.box.y) == (
        (50,) * 3,
        (-1, 1),
        (-2, 2),
    )
    for wrong, said in (
        ({"box": {"spacin": 3}}, "settings: box.spacin: unknown key"),
        ({"box.x": 5}, "settings: box.x: input should be"),
        ({"budget": 3}, "settings: budget: input should be"),
    ):
        with pytest.raises(InputError, match=said):
            load_config(FitConfig, settings=wrong)


@pytest.mark.parametrize("key", GONE)
def test_a_key_that_is_gone_says_what_to_do_and_none_has_its_place(key):
    of_fit = key.partition(".")[0] in FitConfig.model_fields
    model, known = (FitConfig, "box.spacing") if of_fit else (SimulateConfig, "stars")
    for override in (f"{key}=3", f"{key}.limit=3"):
        message = refusal([override, f"{known}=50"], model)
        assert message == f"--set {override}: {key} is gone: {GONE[key]}"


def test_a_key_that_is_gone_is_ignored_in_the_record_of_a_run(tmp_path, capsys):
    path, key = tmp_path / "config.toml", "budget.minutes"
    path.write_text("[budget]\nminutes = 3\n[box]\nspacing = 50\n")
    assert refusal([], path=path) == f"{path}: {key} is gone: {GONE[key]}"
    (tmp_path / "run.json").write_text("{}")
    assert load_config(FitConfig, path) == load_config(FitConfig, None, SPACING)
    assert f"{path}: ignored" in capsys.readouterr().err
    assert refusal([f"{key}=2"], path=path).startswith(f"--set {key}=2: {key} is gone")


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["box.spacing=3", "box.shape=[4,4,4]"], ["spacing and shape"]),
        (["prior.mean=zero", "prior.mean_density=1e-3"], ["mean_density", "zero"]),
        (["prior.mean=constant", "prior.scale_height=9"], ["scale_height"]),
        (["box.x=[-1,1]", "box.x.y=3"], ["box.x is a value"]),
        (
            ["model.density=lognormal", "inference.engine=svi"],
            ["engine svi has no lognormal density", 'model.density = "gaussian"'],
        ),
        (
            ["model.density=gaussian", "model.subgrid_share=0.3"],
            ["model.subgrid_share", "lognormal density"],
        ),
        (["inference.samples=7"], ["inference.samples = 7", "even number"]),
        (["prior.mean=zero"], ["prior.mean", "median", 'model.density = "gaussian"']),
    ],
)
def test_settings_that_contradict_each_other_are_refused(overrides, words):
    message = refusal(overrides)
    for word in ["--set", *words]:
        assert word in message


@pytest.mark.parametrize(
    ("overrides", "density"),
    [
        ([], "lognormal"),
        (["model.density=gaussian"], "gaussian"),
        (["inference.engine=svi"], "gaussian"),
        (
            ["inference.engine=svi", "inference.samples=7", "prior.mean=zero"],
            "gaussian",
        ),
        (["model.density=gaussian", "inference.samples=7"], "gaussian"),
        (["model.density=gaussian", "prior.mean=zero"], "gaussian"),
        (["model.density=lognormal", "inference.samples=0"], "lognormal"),
    ],
)
def test_the_density_follows_from_the_engine_unless_given(overrides, density):
    assert load_config(FitConfig, None, overrides).density == density


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["truth.spacing=300"], ["half_z", "spacing"]),
        (["truth.spacing=100"], ["correlation_length", "spacing"]),
        (["stars=0"], ["stars", "equal to 1"]),
    ],
)
def test_a_galaxy_that_its_grid_cannot_hold_is_refused(overrides, words):
    message = refusal(overrides, SimulateConfig)
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[box\n", ["not valid TOML", "line 1"]),
        (b"[box]\nx = [0,1]\nx = [0,1]\n", ["not valid TOML"]),
        (b"\xff\xfe", ["UTF-8"]),
        (b"[bux]\nx = [0, 1]\n", ["bux", "did you mean box?"]),
        (b"[prior]\nstd = -1\n", ["prior.std", "greater than 0", "-1"]),
        (b"[prior]\nstd = -1\nscale_height = 0\n", ["prior.scale_height"]),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path, content, words):
    path = tmp_path / "run.toml"
    path.write_bytes(content)
    message = refusal([], path=path)
    assert message.startswith(str(path))
    for word in words:
        assert word in message
    path.unlink()
    assert refusal([], path=path).startswith(f"{path}: cannot read")


length = st.floats(1e-6, 1e6)
interval = st.tuples(st.floats(-1e6, -1e-9), st.floats(0, 1e6))


@given(
    x=interval,
    spacing=st.none() | st.tuples(length, length, length),
    std=st.none() | st.floats(1e-300, 10),
    seed=st.integers(0, 2**64 - 1),
    learn=st.booleans(),
)
def test_toml_comes_back_the_same(tmp_path_factory, x, spacing, std, seed, learn):
    config = FitConfig.model_validate(
        {
            "box": {"x": list(x), "spacing": spacing and list(spacing)},
            "prior": {"std": std, "kernel": "squared-exponential"},
            "inference": {"seed": seed, "learn": learn},
        }
    )
    path = tmp_path_factory.mktemp("toml") / "run.toml"
    path.write_text(to_toml(config))
    assert load_config(FitConfig, path) == config
