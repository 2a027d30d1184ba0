"""Kriging by dense algebra, a place at a time."""

from __future__ import annotations

import torch

from dustmap.residual.kriging import JITTER


def kriged(form, weights, rows, noise, places, neighbours):
    """Weights of the neighbours of every place, and the variance that is left."""
    found, left = [], []
    for place, near in enumerate(neighbours):
        own, some = places[place : place + 1], rows[near]
        among = form.components(some[:, None], some[None]) @ weights
        across = form.components(own, some) @ weights
        prior = form.components(own, own)[0] @ weights
        among = among + torch.diag(JITTER * torch.diagonal(among) + noise[near])
        found.append(torch.linalg.solve(among, across))
        left.append(torch.maximum(prior - found[-1] @ across, JITTER * prior))
    return torch.stack(found), torch.stack(left)
