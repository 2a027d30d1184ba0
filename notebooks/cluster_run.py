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
# # A cluster run on one machine
#
# A fit of a large catalogue may outlast a job's time limit. A fit is therefore one command
# that may be interrupted at any time and repeated to continue. Here two processes make a
# small map, receive the signal that Slurm sends before the time limit, and are started
# again, as a queue would do. On a real cluster only the batch file at the end is added.

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
import psutil

import dustmap
from pipelines.figures.box import face_on
from pipelines.run.folder import read_run
from pipelines.run.status import describe, status_of
from pipelines.saving.state_file import read_state
from pipelines.saving.workspace import STATE
from pipelines.run.status import read_metrics

folder = Path(tempfile.mkdtemp(prefix="cluster-run-"))

# %% [markdown]
# ## Catalogue and configuration
#
# On a cluster both must be on a file system that all nodes share. Grid and scales are given,
# so that the fit takes seconds; a real fit learns them. A fit writes a checkpoint every 5
# minutes (`checkpoint.minutes`), here also after every Gauss–Newton step.

# %%
box = {"half_x": 600, "half_y": 600, "half_z": 200}
mock = folder / "mock.parquet"
dustmap.simulate(stars=1500, seed=8, truth=box).write(mock)
print(dustmap.ingest(mock, folder / "stars.parquet", preset="mock"))

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
# `torchrun` starts the processes (here by its module name) and sets their ranks. Every
# process reads and multiplies its own share of the stars. `--resume` starts a new fit,
# continues an interrupted one or reports a finished one: every job of a chain runs the same
# command.

# %%
command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
command += ["--nproc-per-node", "2", "-m", "pipelines.cli", "fit"]
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
    return found["checkpoint"] and "under way" in found["checkpoint"]["stage"]


seen = wait_for(job, is_inferring)

# %% [markdown]
# `dustmap status run` prints this in any shell that sees the folder (`--json` for
# programs):

# %%
print(describe(seen))

# %% [markdown]
# ## The time limit
#
# Slurm sends SIGUSR1 two minutes before (`--signal=B:USR1@120`). The processes drop the
# current step, save the earlier ones and exit.

# %%
ranks = psutil.Process(job.pid).children()
print(f"{len(ranks)} processes get SIGUSR1")
for rank in ranks:
    rank.send_signal(signal.SIGUSR1)
job.wait()
stopped = status_of(folder / "run")
saved = read_state(folder / "run.unfinished" / STATE)
until = len(json.loads(saved["records"]))
print(describe(stopped))
assert stopped["state"] == "stopped"

# %% [markdown]
# `run.unfinished` holds the last checkpoint, a file with its own hash. `run` appears by one
# rename when it is complete, so that no program reads half of a run. A node that
# dies without a signal leaves the last checkpoint.

# %%
assert not (folder / "run").exists()
for place in sorted((folder / "run.unfinished").rglob("*")):
    if place.is_file():
        size = place.stat().st_size / 1024
        print(f"{size:9.1f} KiB  {place.relative_to(folder)}")

# %% [markdown]
# ## The next job of the chain
#
# The same command; the number of processes may differ.

# %%
again = start("second.log")
assert again.wait() == 0, (folder / "second.log").read_text()
print(describe(status_of(folder / "run")))

# %% [markdown]
# The run records the residual of every iteration, across the interruption (dotted): solves
# for the mode, then for the samples.

# %%
records = read_metrics(folder / "run" / "metrics.jsonl")
solves = [(i, r) for i, r in enumerate(records) if r["kind"] == "residual"]
figure, panel = plt.subplots(figsize=(6.4, 2.4), layout="constrained")
panel.semilogy(
    [i for i, _ in solves], [r["value"] for _, r in solves], lw=0.8, color="#0072B2"
)
panel.axvline(until, color="0.2", ls=":")
panel.set_xlabel("iteration")
panel.set_ylabel("relative residual")
plt.show()

# %% [markdown]
# The map.

# %%
face_on(dustmap.open_map(folder / "run").cube)

# %%
summary = json.loads((folder / "run" / "run.json").read_text())["summary"]
print(json.dumps(summary["held_out"], indent=1)[:600])

# %% [markdown]
# ## On a real cluster
#
# The batch file automates these steps: it starts one process per GPU, forwards the signal,
# and resubmits itself until the run is finished.
#
# ```sh
# sbatch scripts/slurm/fit.sbatch stars.parquet run -c fit.toml
# ```
#
# Change its head for your cluster:

# %%
batch = Path(dustmap.__file__).parents[1] / "scripts" / "slurm" / "fit.sbatch"
print("\n".join(batch.read_text().splitlines()[:24]))

# %% [markdown]
# On a workstation without a queue, `scripts/workstation.sh -n 4 stars.parquet run` does the
# same and saves on Ctrl-C.
