#!/usr/bin/env bash
# Whether dustmap works on this machine's GPU, and how fast: checks against the CPU, then
# whitening, nested grids, sight lines, iterations, stages, inferences, published rows, several GPUs.
# Needs no installation: any Python >= 3.11 with torch >= 2.4, numpy, scipy, numba and
# jaxtyping. Results are written as they come, so that it may be stopped at any moment.
# Usage: scripts/bench/gpu.sh [--device cuda|cpu] [--minutes 9] [--smaller N] [--out FOLDER]
#        PYTHON=... chooses the interpreter
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
python=${PYTHON:-$([ -x "$root/.venv/bin/python" ] && echo "$root/.venv/bin/python" || echo python3)}
exec "$python" "$root/scripts/bench/gpu.py" "$@"
