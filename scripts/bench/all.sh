#!/usr/bin/env bash
# Every benchmark in turn, on a machine that does nothing else: hours.
# Usage: scripts/bench/all.sh OUT [NAME...], names without .py; all unless given.
# Options of one benchmark: DUSTMAP_BENCH_<NAME>="--spacing 50", capitals. Data by
# DUSTMAP_DATA. What fails is listed at the end and does not stop the others.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
[ $# -ge 1 ] || { echo "all.sh: name a folder: scripts/bench/all.sh OUT [NAME...]" >&2; exit 2; }
out=$1
shift
names=("$@")
[ ${#names[@]} -gt 0 ] || names=(development levels calibration peers prior_roots query \
  regress ingest)
python="$here/../../.venv/bin/python"
[ -x "$python" ] || "$here/../install" || exit 1
export OMP_WAIT_POLICY=PASSIVE OPENBLAS_NUM_THREADS=1
failed=()
for name in "${names[@]}"; do
  [ -f "$here/$name.py" ] || { echo "all.sh: there is no benchmark $name" >&2; exit 2; }
done
for name in "${names[@]}"; do
  variable="DUSTMAP_BENCH_${name^^}"
  read -ra options <<<"${!variable:-}"
  mkdir -p "$out/$name"
  echo "== $name" >&2
  "$python" "$here/$name.py" --output "$out/$name" ${options[@]+"${options[@]}"} \
    || failed+=("$name")
done
[ ${#failed[@]} -eq 0 ] || { echo "all.sh: failed: ${failed[*]}" >&2; exit 1; }
