# ---
# jupyter:
#   jupytext:
#     formats: py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A run on a cluster, rehearsed on one machine
#
# A fit of a large catalogue takes hours on several GPUs, and a job ends when its time is
# over, whether the fit has ended or not. So a fit is one command that may be stopped at
# any moment and given again: it goes on where it was. Here two processes make a small
# map together, are stopped by the signal that Slurm sends before the time is over, and
# are started again, as a queue would do it. With a real cluster only the batch file at
# the end is new.

# %%
# %matplotlib inline
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import psutil

import pipelines
from pipelines.catalog.ingest import ingest
from pipelines.config import SimulateConfig, load_config
from pipelines.figures import face_on
from pipelines.storage.metrics import read_metrics
from pipelines.products import map_cube
from pipelines.run.folder import read_run
from pipelines.simulate import simulate
from pipelines.run.status import describe, status_of
from pipelines.verify import verify

folder = Path(tempfile.mkdtemp(prefix="cluster-run-"))

# %% [markdown]
# ## Catalogue and configuration
#
# On a cluster both lie on the file system that all nodes see. The grid and the prior's
# scales are given here, so that the fit is one of seconds; a real one learns them. It
# saves itself every 5 minutes by default (`checkpoint.minutes`), here after every
# Gauss–Newton step, too.

# %%
box = ["truth.half_x=600", "truth.half_y=600", "truth.half_z=200"]
galaxy = load_config(SimulateConfig, overrides=["stars=1500", "seed=8", *box])
simulate(galaxy, folder / "mock.parquet", truth=None, overwrite=False)
print(ingest([folder / "mock.parquet"], folder / "stars.parquet", preset="mock"))

(folder / "fit.toml").write_text(
    """\
[box]
x = [-600, 600]
y = [-600, 600]
z = [-200, 200]
spacing = 50

[prior]
lengthscale = 90
std = 1.4

[inference]
learn = false
samples = 4

[checkpoint]
iterations = 1
"""
)

# %% [markdown]
# ## The command
#
# `torchrun` starts the processes (here by its module name) and tells each its place.
# Every process reads and multiplies its own share of the stars. `--resume` begins where
# there is nothing yet, goes on where a fit was stopped, and says so where all is done:
# the same line serves every job of a chain.

# %%
command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
command += ["--nproc-per-node", "2", "-m", "pipelines.fit"]
command += ["stars.parquet", "-o", "run", "-c", "fit.toml", "--resume"]
print(" ".join(["torchrun", *command[4:]]))


def start(log):
    """The processes at work, with what they say in a file."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    with open(folder / log, "w") as out:
        return subprocess.Popen(
            command, cwd=folder, stdout=out, stderr=out, env=environment
        )


def wait_for(job, reached):
    """The status of the run as soon as it is what is waited for."""
    while job.poll() is None:
        if (folder / "run.unfinished").is_dir():
            found = status_of(folder / "run")
            if reached(found):
                return found
        time.sleep(0.05)
    raise RuntimeError((folder / "first.log").read_text())


job = start("first.log")


def is_inferring(found):
    return found["checkpoint"] and found["checkpoint"]["stage"] == "inferring"


seen = wait_for(job, is_inferring)

# %% [markdown]
# `dustmap status run` says this from any shell that sees the folder (`--json` for a
# program):

# %%
print(describe(seen))

# %% [markdown]
# ## The time is over
#
# Slurm sends SIGUSR1 two minutes before (`--signal=B:USR1@120`). The processes finish
# the iteration they are in, save and end. A second of work is lost, or none.

# %%
ranks = psutil.Process(job.pid).children()
print(f"{len(ranks)} processes get SIGUSR1")
for rank in ranks:
    rank.send_signal(signal.SIGUSR1)
job.wait()
stopped = status_of(folder / "run")
until = len(read_metrics(folder / "run.unfinished" / "metrics.jsonl"))
print(describe(stopped))
assert stopped["state"] == "stopped"

# %% [markdown]
# What is there now is `run.unfinished`, with the newest checkpoints, each with the
# hashes of its files. There is no `run` yet: it appears by one rename when it is whole,
# so that nothing ever reads half of one. A node that dies without a signal leaves the
# checkpoint before.

# %%
assert not (folder / "run").exists()
for place in sorted((folder / "run.unfinished").rglob("*")):
    if place.is_file():
        size = place.stat().st_size / 1024
        print(f"{size:9.1f} KiB  {place.relative_to(folder)}")

# %% [markdown]
# ## The next job of the chain
#
# The very same command. The number of processes may be another one.

# %%
again = start("second.log")
assert again.wait() == 0, (folder / "second.log").read_text()
print(describe(status_of(folder / "run")))
print(verify(folder / "run"))

# %% [markdown]
# What each iteration reached is kept with the run, across the stop (dotted): residuals
# of the solves to the mode and then of the samples, which fall within each solve.

# %%
records = read_metrics(folder / "run" / "metrics.jsonl")
solves = [(i, r) for i, r in enumerate(records) if r.get("residual")]
figure, panel = plt.subplots(figsize=(6.4, 2.4), layout="constrained")
panel.semilogy(
    [i for i, _ in solves], [r["residual"] for _, r in solves], lw=0.8, color="#0072B2"
)
panel.axvline(until, color="0.2", ls=":")
panel.set_xlabel("iteration")
panel.set_ylabel("relative residual")
plt.show()

# %% [markdown]
# And the map.

# %%
run = read_run(folder / "run")
cube = map_cube(run)
face_on(cube)

# %%
summary = json.loads((folder / "run" / "run.json").read_text())["summary"]
print(json.dumps(summary["held_out"], indent=1)[:600])

# %% [markdown]
# ## On a real cluster
#
# The batch file does what was done by hand above: it starts one process for each GPU,
# passes the signal on, and queues itself again until the run is finished.
#
# ```sh
# sbatch scripts/slurm/fit.sbatch stars.parquet run -c fit.toml
# ```
#
# Its head is what a user changes:

# %%
batch = Path(pipelines.__file__).parents[1] / "scripts" / "slurm" / "fit.sbatch"
print("\n".join(batch.read_text().splitlines()[:24]))

# %% [markdown]
# On a workstation with some GPUs and no queue, `scripts/workstation.sh -n 4
# stars.parquet run` is the same, saved on Ctrl-C. Where a grid is larger than the
# memory of one process, `--set inference.grid=slabs` shares that out, too.
