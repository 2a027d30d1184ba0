"""Observation models ``p(y_n | f_n)`` of a latent functional ``f_n = L_n ρ``."""

from dustmap.likelihoods.base import Likelihood
from dustmap.likelihoods.gaussian import Gaussian
from dustmap.likelihoods.student_t import StudentT
