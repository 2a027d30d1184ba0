#!/usr/bin/env bash
# One fit on this machine by several processes, resumed where it stopped.
# Usage: scripts/workstation.sh [-n RANKS] stars.parquet RUN [options of dustmap fit …]
# RANKS: one for each CUDA device, or two where there is none. Ctrl-C, SIGTERM or
# SIGUSR1 saves and ends; the same command goes on. See fit.sbatch for a cluster.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python="$here/../.venv/bin/python"
[ -x "$python" ] || "$here/install" || exit 1
ranks=""
if [ "${1:-}" = -n ]; then
  [ $# -ge 2 ] || { echo "workstation.sh: -n takes a number of processes" >&2; exit 2; }
  ranks=$2
  shift 2
fi
[ $# -ge 2 ] || { echo "workstation.sh: name a catalogue and a run: scripts/workstation.sh stars.parquet RUN" >&2; exit 2; }
catalogue=$1
run=$2
shift 2
if [ -z "$ranks" ]; then
  ranks=$("$python" -c "import torch; print(torch.cuda.device_count() or 2)")
fi
export OMP_WAIT_POLICY=PASSIVE OPENBLAS_NUM_THREADS=1
stopped=no
# To the ranks alone: torchrun would give them half a minute to save, and ignores this.
# Its own session keeps Ctrl-C from them, of which a second one ends without saving.
trap 'stopped=yes; pkill -USR1 -P "$fit" || true' USR1 TERM INT
setsid bash -c "trap '' USR1; exec \"\$@\"" ranks \
  "$python" -m torch.distributed.run --standalone --nproc-per-node "$ranks" \
  -m pipelines.cli fit "$catalogue" -o "$run" --resume "$@" &
fit=$!
status=0
while true; do
  wait "$fit" && status=0 || status=$?
  kill -0 "$fit" 2>/dev/null || break
done
# torchrun ends with 1 whatever its ranks end with: 75 says that it can go on.
[ "$stopped" = no ] || [ "$status" -eq 0 ] || exit 75
exit "$status"
