"""The experiments with the preconditioner run, and count what they say they count."""

import importlib
import json
import sys
from pathlib import Path

import pytest
import torch
from matplotlib.image import imread

from dustmap.linalg.cg import ConjugateGradients

FOLDER = Path(__file__).resolve().parents[2] / "scripts/paper"


@pytest.fixture(autouse=True)
def paper(monkeypatch):
    """The folder of the scripts on the path, as Python puts it for a script."""
    monkeypatch.syspath_prepend(str(FOLDER))


def quick(name, folder, monkeypatch):
    """The record of a smoke run whose files are all there."""
    monkeypatch.setattr(sys, "argv", [name, "--quick", "--output", str(folder)])
    importlib.import_module(name).main()
    assert (folder / f"{name}.md").read_text().startswith("**A smoke run")
    assert imread(folder / f"{name}.png").shape[1] > 1000
    return json.loads((folder / f"{name}.json").read_text())


def system(generator, size=40, columns=3):
    """A well conditioned covariance, a rough inverse of it, and right-hand sides."""
    root = torch.randn(size, size, generator=generator, dtype=torch.float64)
    matrix = root @ root.mT / size + torch.diag(torch.linspace(1, 30, size).double())
    rhs = torch.randn(columns, size, generator=generator, dtype=torch.float64)
    return matrix, 1 / matrix.diagonal(), rhs


@pytest.mark.parametrize("preconditioned", [False, True])
def test_recorded_iterations_are_those_of_the_library(generator, preconditioned):
    from recorded_cg import recorded

    matrix, inverse, rhs = system(generator)

    def product(x):
        return x @ matrix

    by = (lambda x: x * inverse) if preconditioned else None
    exact = torch.linalg.solve(matrix, rhs.mT).mT
    history = recorded(
        product, rhs, exact, tolerance=1e-9, max_steps=200, preconditioner=by
    )
    solver = ConjugateGradients(rtol=1e-8, max_steps=200, restarts=0)
    solution = solver.solve(product, rhs, preconditioner=by)
    limits = 1e-8 * rhs.norm(dim=1)
    assert history.iterations(limits).tolist() == solution.iterations.tolist()
    assert history.slowest(limits) == int(solution.iterations.max())
    assert history.slowest(1e-9) == len(history.residual) - 1


def test_recorded_errors_are_those_of_the_dense_solution(generator):
    from recorded_cg import recorded

    matrix, _, rhs = system(generator)
    exact = torch.linalg.solve(matrix, rhs.mT).mT
    history = recorded(lambda x: x @ matrix, rhs, exact, tolerance=1e-12, max_steps=99)
    torch.testing.assert_close(history.error[0], (exact**2).mean(dim=1).sqrt())
    torch.testing.assert_close(history.final, exact)
    assert float(history.error[-1].max()) < 1e-12
    # Conjugate gradients lower the error in every step (Hestenes & Stiefel 1952).
    assert bool((history.error.diff(dim=0) < 0).all())
    half = recorded(lambda x: x @ matrix, rhs, exact, tolerance=1e-12, max_steps=5)
    torch.testing.assert_close(half.error, history.error[:6])
    assert half.slowest(1e-12) is None


def test_pcg_needs_a_small_share_of_the_iterations_of_cg(tmp_path, monkeypatch):
    record = quick("pcg_vs_cg", tmp_path, monkeypatch)
    small, large, *_ = record["tables"]["Iterations"]
    assert (small["M"], large["M"]) == (625, 2500)
    assert large["PCG / CG"] < small["PCG / CG"] < 0.4
    assert small["PCG / CG"] == small["PCG"] / small["CG"]
    assert max(small["true residual, CG"], small["true residual, PCG"]) < 1e-10
    stated = [entry["paper"] for entry in record["comparisons"]]
    assert stated == ["< 0.18", None, "< 0.045", None]
    # What a smoke run does not solve is not filled with the paper's figure.
    assert record["comparisons"][2]["here"] is None
    assert "| not run |" in (tmp_path / "pcg_vs_cg.md").read_text()


def test_settings_hold_the_papers_shares_only_if_both_are_below():
    from pcg_vs_cg import Case, verdict

    def case(kernel, side, share):
        return Case(
            kernel=kernel,
            lengthscale=0.1,
            side=side,
            plain=None,
            preconditioned=None,
            row={"PCG / CG": share},
        )

    both = [case("matern52", 25, 0.17), case("matern52", 100, "< 0.04")]
    one = [case("matern32", 25, 0.17), case("matern32", 100, 0.05)]
    failed = [case("matern12", 25, 0.1), case("matern12", 100, "PCG not converged")]
    cases = both + one + failed
    assert verdict(cases, True) == ["5/2, 0.025"]
    assert verdict(cases, False) == ["3/2, 0.025", "1/2, 0.025"]
    assert verdict(cases, None) == []
    unknown = [case("matern52", 25, 0.17), case("matern52", 100, "< 0.06")]
    assert verdict(unknown, None) == ["5/2, 0.025"]
    assert verdict(unknown, True) == verdict(unknown, False) == []


def test_the_share_falls_with_the_number_of_points(tmp_path, monkeypatch):
    record = quick("preconditioner", tmp_path, monkeypatch)
    rows = record["tables"]["Iterations"]
    assert len(rows) == 2 * 4 * 3
    rough = [
        row["r"]
        for row in rows
        if (row["kernel"], row["lengthscale"]) == ("Matérn 1/2", 0.05)
    ]
    assert rough == sorted(rough, reverse=True) and rough[-1] < 0.1
    # The rough kernel needs no larger embedding, the smooth one loses modes without.
    smooth = [row for row in rows if row["lengthscale"] == 0.5][2]
    assert smooth["kernel"] == "squared exponential"
    assert smooth["modes <= 0, smallest"] > 0 and smooth["embedding / smallest"] > 1.5


def test_a_share_says_when_a_solver_failed():
    from preconditioner import Share, parsed, share

    class Solved:
        def __init__(self, steps):
            self.iterations = torch.tensor([1, steps])

    assert share(Solved(50), Solved(5), 100) == pytest.approx(0.1)
    assert share(Solved(100), Solved(5), 100) == "< 0.05"
    assert share(Solved(50), Solved(100), 100) == "PCG not converged"
    assert share(Solved(100), Solved(100), 100) == "neither converged"
    assert parsed("< 0.05") == Share(0.05, True) and parsed(0.1) == Share(0.1, False)
    assert parsed("PCG not converged") is None
