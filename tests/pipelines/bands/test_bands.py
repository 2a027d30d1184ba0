"""Extinction in other bands: published tables, identities, and what is refused."""

import builtins

import numpy as np
import pytest

from pipelines.bands import CURVES, conversion, factor, parse_band, source_band
from pipelines.base.errors import InputError
from pipelines.cubes.cube import Cube
from pipelines.cubes.sky import SkyMaps
from pipelines.export.exporters import in_band

# A(λ)/A(V) for R_V = 3.1 as printed: Cardelli, Clayton & Mathis 1989, table 3.
# (Their B, 1.337, is not what their own equation 3 gives at 2.27 per µm: 1 + 1/3.1.)
PRINTED = {2.78: 1.569, 1.43: 0.751, 1.11: 0.479, 0.8: 0.282, 0.46: 0.114}


@pytest.mark.parametrize(("number", "ratio"), PRINTED.items())
def test_the_curve_of_1989_has_the_ratios_of_its_table(number, ratio):
    found = factor("A_V", f"A({1e3 / number:.6f} nm)", curve="CCM89")
    assert found == pytest.approx(ratio, abs=0.004)


def test_a_0_is_a_v_for_the_curve_it_was_defined_with():
    assert factor("A_V", "A_0", curve="F99") == pytest.approx(1.0, abs=2e-4)
    assert factor("A_V", "A(5414 angstrom)", curve="F99") == factor(
        "A_V", "A_0", curve="F99"
    )


def test_e_b_v_is_what_r_v_is_defined_by():
    for r_v in (2.5, 3.1, 5.0):
        excess = factor("A_V", "E(B-V)", r_v=r_v)
        assert excess == pytest.approx(1 / r_v, rel=1e-15)
        assert factor("A_V", "A_B", r_v=r_v) - 1.0 == pytest.approx(excess, rel=1e-12)
    by_curve = factor("A_V", f"A({1e3 / 2.27} nm)", curve="CCM89")
    assert by_curve == pytest.approx(factor("A_V", "A_B"), abs=1e-4)
    # Other curves are nearly so: by this much is the convention a choice.
    by_curve = factor("A_V", "A(438 nm)") / factor("A_V", "A_B")
    assert by_curve == pytest.approx(1.0, abs=0.01)


def test_a_colour_excess_is_the_difference_of_its_bands():
    blue, red = factor("A_V", "A_BP"), factor("A_V", "A_RP")
    assert factor("A_V", "E(BP-RP)") == pytest.approx(blue - red, rel=1e-12)
    assert factor("E(BP-RP)", "A_V") == pytest.approx(1 / (blue - red), rel=1e-12)


def test_a_conversion_names_all_that_it_rests_on():
    change = conversion("A_V", "E(BP-RP)", curve="F19", r_v=3.3).as_dict()
    assert change["wavelengths"] == {"A_BP": 510.97, "A_RP": 776.91}
    assert (change["curve"], change["r_v"]) == ("F19", 3.3)
    assert change["package"].startswith("dust_extinction 1.")
    # A_V, A_B and E(B-V) need R_V alone.
    plain = conversion("A_B", "E(B-V)")
    assert (plain.package, plain.curve, plain.wavelengths) == ("", "", {})


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (" A_V ", "A_V"),
        ("A0", "A_0"),
        ("A(V)", "A_V"),
        ("A_G_BP", "A_BP"),
        ("E(B−V)", "E(B-V)"),
        ("E(B—V)", "E(B-V)"),
        ("E(GBP-GRP)", "E(BP-RP)"),
        ("E(G_BP−G_RP)", "E(BP-RP)"),
        ("E(G-G_RP)", "E(G-RP)"),
        ("A(0.55 um)", "A(550 nm)"),
        ("A( 550nm )", "A(550 nm)"),
        ("E(g(PS1) - r(PS1))", "E(g(PS1)-r(PS1))"),
    ],
)
def test_names_are_understood(text, name):
    assert parse_band(text).name == name
    assert parse_band(name).name == name


@pytest.mark.parametrize(
    ("source", "target", "more", "message"),
    [
        ("A_V", "A_g", {}, r"do you mean G or g\(SDSS\)"),
        ("A_V", "A_Q", {}, "there are U, B, V"),
        ("A_V", "reddening", {}, r"such as E\(B-V\) or E\(BP-RP\)"),
        ("A_V", "E(RP-BP)", {}, "bluer band"),
        ("A_V", "E(G-G)", {}, "with itself"),
        ("A_V", "A(0 nm)", {}, "no wavelength"),
        ("A_V", "A(1.2.3 nm)", {}, "no wavelength"),
        ("A_V", "A_W1", {"curve": "F19"}, "F19 reaches from 114.9 to 3333 nm"),
        ("A_V", "A_G", {"curve": "G03"}, "there are G23, F19"),
        ("A_V", "A_G", {"r_v": 9.0}, "R_V of 2.3 to 5.6"),
        ("A_V", "E(B-V)", {"r_v": -1.0}, "positive"),
    ],
)
def test_what_makes_no_sense_is_refused(source, target, more, message):
    with pytest.raises(InputError, match=message):
        factor(source, target, **more)


@pytest.mark.parametrize(
    ("stated", "band"),
    [
        ("A_V", "A_V"),
        ("A_0, monochromatic at 541.4 nm (Fitzpatrick 1999)", "A_0"),
        ("A_V at 542 nm", "A(542 nm)"),
    ],
)
def test_the_band_of_a_map_is_that_of_its_catalogue(stated, band):
    assert source_band(stated) == source_band(stated, band) == band
    with pytest.raises(InputError, match="--band A_Ks converts"):
        source_band(stated, "A_Ks")


@pytest.mark.parametrize(
    "stated", ["", "arbitrary", "as in the catalogue", "A_0; A_V", "A_V; arbitrary"]
)
def test_a_band_that_is_not_known_must_be_given(stated):
    with pytest.raises(InputError, match="--declare-band"):
        source_band(stated)
    assert source_band(stated, "AKs") == "A_Ks"


def test_without_the_package_the_extra_is_named(monkeypatch):
    original = builtins.__import__

    def refuse(name, *rest, **more):
        if name.startswith("dust_extinction"):
            raise ImportError(name)
        return original(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(InputError, match=r"dustmap\[bands\]"):
        factor("A_V", "A_G")


def test_products_are_scaled_and_say_so():
    change = conversion("A_V", "A_G")
    values = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
    axis = np.array([0.0, 1.0])
    meta = {"extinction_band": "A_V", "citation": {"band": "A_V"}}
    names = ("mean", "std", "p50", "support")
    cube = Cube(x=axis, y=axis, z=axis, arrays=dict.fromkeys(names, values), meta=meta)
    found = in_band(cube, change)
    for name in names[:3]:
        np.testing.assert_allclose(found.arrays[name], change.factor * values)
        assert found.arrays[name].dtype == np.float32
    np.testing.assert_array_equal(found.arrays["support"], values)
    assert found.meta["extinction_band"] == found.meta["citation"]["band"] == "A_G"
    assert found.meta["band_conversions"] == [change.as_dict()]
    curve, _ = found.meta["citation"]["extinction_curve"]
    assert curve == CURVES["G23"]
    assert cube.meta == meta and in_band(cube, None) is cube
    rays = np.ones((2, 12), dtype=np.float32)
    integrated = SkyMaps(
        distances=np.array([1.0, 2.0]),
        arrays={"mean": rays, "std": rays},
        last_star=np.ones(12),
    )
    scaled = in_band(integrated, change)
    np.testing.assert_allclose(scaled.arrays["std"], change.factor)
    np.testing.assert_array_equal(scaled.last_star, 1.0)
