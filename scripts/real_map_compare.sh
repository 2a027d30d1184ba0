#!/usr/bin/env bash
# The map that scripts/real_map.sh made, compared with held-out stars, published lines of
# sight, clouds, and another map. Usage: scripts/real_map_compare.sh DATA [FOLDER]
# DATA holds bayestar2015_lines_of_sight.csv, cloud_distances.csv and
# bayestar2019_cart128_20pc.npz, which are not part of dustmap; what is absent is skipped
# and said. Results go to FOLDER/compare/{stars,lines,clouds,map}.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
fail() { echo "real_map_compare.sh: $1" >&2; exit 2; }
[ $# -ge 1 ] || fail "name the folder with the references: scripts/real_map_compare.sh DATA [FOLDER]"
data=$1
folder=${2:-real_map}
[ -f "$folder/run/run.json" ] || fail "$folder has no run: make it with scripts/real_map.sh DATA $folder"
dustmap() { echo "\$ dustmap $*" >&2; "$root/.venv/bin/dustmap" "$@"; }
against() {
  local name=$1 reference=$2
  shift 2
  if [ "$reference" != held-out ] && [ ! -f "$reference" ]; then
    echo "real_map_compare.sh: no $reference: nothing in $folder/compare/$name" >&2
    return
  fi
  dustmap compare "$folder/run" "$reference" -o "$folder/compare/$name" --overwrite "$@"
}
mkdir -p "$folder/compare"
against stars held-out
# The map is in A_V and the references in E(B-V), whose own scales differ by some 15%.
against lines "$data/bayestar2015_lines_of_sight.csv" --r-v 3.1
against clouds "$data/cloud_distances.csv"
against map "$data/bayestar2019_cart128_20pc.npz" --factor 3.1
