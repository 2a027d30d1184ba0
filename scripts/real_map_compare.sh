#!/usr/bin/env bash
# The map that scripts/real_map.sh made, compared with held-out stars and with another
# map. Usage: scripts/real_map_compare.sh DATA [FOLDER]
# DATA holds bayestar2019_cart128_20pc.npz, which is not part of dustmap; where it is
# absent this comparison is skipped, with a message. Results go to
# FOLDER/compare/{stars,map}. notebooks/clouds_and_sight_lines.py compares a map with
# clouds and with published sight lines.
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
# The map is in A_V and the reference in E(B-V), whose own scale differs by some 15%.
against map "$data/bayestar2019_cart128_20pc.npz" --factor 3.1
