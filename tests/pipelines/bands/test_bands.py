"""Extinction in other bands: published tables, identities, and what is refused."""

import builtins
import itertools

import numpy as np
import pytest
from astropy import units as u
from astropy.modeling.models import BlackBody
from dust_extinction.parameter_averages import CCM89, G23

from pipelines.bands import PASSBANDS, conversion, factor, parse_band, source_band
from pipelines.base.errors import InputError

# A(λ)/A(V) for R_V = 3.1 as printed: Cardelli, Clayton & Mathis 1989, table 3.
# (Their B, 1.337, is not what their own equation 3 gives at 2.27 per µm: 1 + 1/3.1.)
PRINTED = {2.78: 1.569, 1.43: 0.751, 1.11: 0.479, 0.8: 0.282, 0.46: 0.114}


@pytest.mark.parametrize(("number", "ratio"), PRINTED.items())
def test_the_curve_of_1989_has_the_ratios_of_its_table(number, ratio):
    found = factor("A_V", f"A({1e3 / number:.6f} nm)", curve="CCM89")
    assert found == pytest.approx(ratio, abs=0.004)


# Pivot wavelengths [nm] as printed: Riello et al. 2021, table 4 (Gaia); Tonry et al.
# 2012, table 4 (PS1); and effective, isophotal ones of SDSS (Stoughton et al. 2002),
# 2MASS (Cohen et al. 2003), WISE (Jarrett et al. 2011) and UBVRIJHK
# (Bessell et al. 1998).
PIVOTS = {
    1.2e-4: {"G": 621.79, "BP": 510.97, "RP": 776.91},
    0.01: {"g(PS1)": 481, "r(PS1)": 617, "i(PS1)": 752, "z(PS1)": 866, "y(PS1)": 962},
    0.012: {
        "u(SDSS)": 355.1,
        "g(SDSS)": 468.6,
        "r(SDSS)": 616.6,
        "i(SDSS)": 748.0,
        "z(SDSS)": 893.2,
    },
    0.013: {"J": 1235, "H": 1662, "Ks": 2159, "K": 2190, "W1": 3352.6, "W2": 4602.8},
    0.025: {"U": 366, "R": 641, "I": 798},
}


def test_passbands_have_their_published_wavelengths():
    for tolerance, published in PIVOTS.items():
        for name, wavelength in published.items():
            _, nodes, weights = PASSBANDS[name]
            assert weights.sum() == pytest.approx(1, abs=1e-4)
            pivot = (weights.sum() / (weights / nodes**2).sum()) ** 0.5
            assert pivot == pytest.approx(wavelength, rel=tolerance), name
    known = {name for published in PIVOTS.values() for name in published}
    assert known | {"V", "B", "0"} == {*PASSBANDS}


# Responses in thousandths: Gaia DR3's G per photon, at 320 to 1060 nm in steps of 10 nm
# (Riello et al. 2021); R per energy at the wavelengths of Bessell 1990.
G_NM = np.arange(320.0, 1061.0, 10.0)
G_RESPONSE = """
0 10 87 126 121 109 116 205 341 433 493 533 560 582 599 613 625 635 643 651 659 665 673
678 683 688 693 698 701 706 710 712 715 717 718 717 716 713 710 702 695 683 671 654 636
616 592 567 540 510 479 447 415 380 347 314 281 250 218 190 162 137 114 93 75 59 45 34
25 17 11 7 4 2 0"""
R_NM = np.array([*range(550, 751, 10), 800, 850, 900], dtype=float)
R_RESPONSE = (
    "0 230 740 910 980 1000 980 960 930 900 860 810 780 720 670 610 560 510 460 400 "
    "350 140 30 0"
)


@pytest.mark.parametrize("temperature", [4000.0, 5800.0, 10_000.0])
@pytest.mark.parametrize("a_v", [0.01, 1.0, 5.0])
@pytest.mark.parametrize(("curve", "r_v"), [(G23, 3.1), (G23, 5.0), (CCM89, 2.5)])
def test_passbands_are_integrated(curve, r_v, a_v, temperature):
    for name, nm, text, power in (
        ("A_G", G_NM, G_RESPONSE, 1),
        ("A_R", R_NM, R_RESPONSE, 0),
    ):
        fine = np.linspace(nm[0], nm[-1], 20_001)
        light = BlackBody(temperature * u.K)(fine * u.nm).value * fine**-2.0
        light *= np.interp(fine, nm, np.array(text.split(), float)) * fine**power
        dimmed = light * 10 ** (-0.4 * a_v * curve(Rv=r_v)(1e3 / fine / u.micron))
        exact = -2.5 * np.log10(np.trapezoid(dimmed, fine) / np.trapezoid(light, fine))
        given = {"curve": curve.__name__, "r_v": r_v, "at_av": a_v}
        found = factor("A_V", name, temperature=temperature, **given)
        # The coarse table of G has a share in its difference.
        assert found == pytest.approx(exact / a_v, rel=1.5e-3), name


# A/A_V of red clump stars: Wang & Chen 2019, table 3; the law differs by some per cent.
# Theirs of infrared bands are of a steeper power law (A_Ks = 0.078 A_V).
RED_CLUMP = """
G 0.789 0.01
BP 1.002 0.03
RP 0.589 0.06
g(SDSS) 1.205 0.02
r(SDSS) 0.848 0.03
u(SDSS) 1.584 0.03
g(PS1) 1.155 0.01
r(PS1) 0.843 0.03"""
# A/E(B-V) of the law of 1989: Casagrande & VandenBerg 2018, table 2, with DR2's bands.
NOMINAL = {"A_G": 2.740, "A_BP": 3.374, "A_RP": 2.035, "E(BP-RP)": 1.339}


def test_factors_are_those_of_the_literature():
    for band, published, tolerance in map(str.split, RED_CLUMP.strip().splitlines()):
        found = factor("A_V", f"A_{band}", temperature=4800.0)
        assert found == pytest.approx(float(published), rel=float(tolerance)), band
    found = factor("A_V", "E(BP-RP)", temperature=4800.0)
    assert found == pytest.approx(1.002 - 0.589, rel=0.02)
    for band, published in NOMINAL.items():
        found = factor("E(B-V)", band, curve="CCM89", at_av=0.3)
        assert found == pytest.approx(published, rel=0.03), band
    assert 0.41 < factor("A_V", "E(BP-RP)") < 0.43


def test_the_factor_is_of_one_extinction_and_states_its_range():
    change = conversion("A_V", "A_G")
    at = {
        a_v: conversion("A_V", "A_G", at_av=a_v) for a_v in (0.0, 1e-9, 0.3, 5.0, 100.0)
    }
    ends = [at[0.0].factor, at[5.0].factor]
    assert change.factor_range == pytest.approx(ends, rel=1e-12)
    assert at[1e-9].factor == pytest.approx(at[0.0].factor, rel=1e-9)
    ordered = [at[0.3], change, at[5.0], at[100.0]]
    assert all(a.factor > b.factor for a, b in itertools.pairwise(ordered))
    said = change.as_dict()
    assert (said["at_av"], said["temperature"]) == (1.0, 5800.0)
    # Between two bands by way of A_V; and what is no passband is the same at any A_V.
    for a_v in (0.0, 4.0):
        ratio = factor("A_V", "A_Ks", at_av=a_v) / factor("A_V", "A_G", at_av=a_v)
        assert factor("A_G", "A_Ks", at_av=a_v) == pytest.approx(ratio, rel=1e-12)
        for plain in ("A_0", "E(B-V)", "A_B", "A(550 nm)", "E(B-V)_SFD"):
            assert factor("A_V", plain, at_av=a_v) == factor("A_V", plain)
    # At infrared wavelengths passbands are narrow for the curve.
    for band, nm in (("A_K", 2200), ("A_Ks", 2159), ("A_J", 1240), ("A_W2", 4600)):
        curve = factor("A_V", f"A({nm} nm)")
        assert factor("A_V", band) == pytest.approx(curve, rel=0.03), band


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
    assert [*change["passbands"]] == ["A_BP", "A_RP"]
    assert "Riello et al. 2021" in change["passbands"]["A_BP"]
    assert "Andrae" in conversion("A_V", "A_0").passbands["A_0"]
    assert (change["curve"], change["r_v"]) == ("F19", 3.3)
    assert change["package"].startswith("dust_extinction 1.")
    # A_V, A_B and E(B-V) need R_V alone.
    plain = conversion("A_B", "E(B-V)")
    assert (plain.package, plain.curve, plain.passbands) == ("", "", {})


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
        ("A_V", "A_Q", {}, "of V, B, 0, U"),
        ("A_V", "reddening", {}, r"such as E\(B-V\) or E\(BP-RP\)"),
        ("A_V", "E(RP-BP)", {}, "bluer band"),
        ("A_V", "E(G-G)", {}, "with itself"),
        ("A_V", "A(0 nm)", {}, "no wavelength"),
        ("A_V", "A(1.2.3 nm)", {}, "no wavelength"),
        ("A_V", "A_W1", {"curve": "F19"}, "F19 reaches from 114.9 to 3333 nm"),
        ("A_V", "A_G", {"curve": "G03"}, "there are G23, F19"),
        ("A_V", "A_G", {"r_v": 9.0}, "R_V of 2.3 to 5.6"),
        ("A_V", "E(B-V)", {"r_v": -1.0}, "positive"),
        ("A_V", "A_G", {"temperature": 0.0}, "positive"),
        ("A_V", "A_G", {"at_av": -0.1}, "0 to 100 mag"),
        ("A_V", "A_G", {"at_av": float("nan")}, "0 to 100 mag"),
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
