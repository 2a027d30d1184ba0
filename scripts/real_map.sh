#!/usr/bin/env bash
# A map from real open clusters of seven catalogues and hot stars of Gaia: ingest, fit,
# export, plot, a page, a sky slice, and how well it does on held-out objects and beside
# another map.
# Usage: scripts/real_map.sh DATA [FOLDER]
# DATA holds cluster_surveys.csv.gz and gaia_ob.csv.gz (presets cluster-surveys and
# gaia-hot-stars tell what they are), and for the other map
# bayestar2019_cart128_20pc.npz, which are not part of dustmap.
# DUSTMAP_REAL_MAP_FIT ("KEY=VALUE ...") overrides keys of scripts/real_map.toml.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
fail() { echo "real_map.sh: $1" >&2; exit 2; }
[ $# -ge 1 ] || fail "name the folder with the catalogues: scripts/real_map.sh DATA [FOLDER]"
data=$1
folder=${2:-real_map}
for name in cluster_surveys.csv.gz gaia_ob.csv.gz; do
  [ -f "$data/$name" ] || fail "$data has no $name: name the folder that holds cluster_surveys.csv.gz and gaia_ob.csv.gz"
done
python="$root/.venv/bin/python"
[ -x "$python" ] || "$root/scripts/install"
dustmap() { echo "\$ dustmap $*" >&2; "$root/.venv/bin/dustmap" "$@"; }
overrides=()
for pair in ${DUSTMAP_REAL_MAP_FIT:-}; do overrides+=(--set "$pair"); done
mkdir -p "$folder"
# Stars have no names here, so that clusters lose theirs.
dustmap ingest "$data/cluster_surveys.csv.gz" --preset cluster-surveys \
  --map source_id=none -o "$folder/clusters.parquet" --overwrite
dustmap ingest "$data/gaia_ob.csv.gz" --preset gaia-hot-stars \
  -o "$folder/gaia.parquet" --overwrite
dustmap ingest "$folder/clusters.parquet" "$folder/gaia.parquet" \
  -o "$folder/stars.parquet" --overwrite
dustmap fit "$folder/stars.parquet" -o "$folder/run" -c "$root/scripts/real_map.toml" \
  --overwrite ${overrides[@]+"${overrides[@]}"}
dustmap export "$folder/run" --fits "$folder/map.fits" \
  --healpix "$folder/map.healpix.fits" --overwrite
dustmap plot "$folder/run" -o "$folder/figures"
# Orion A, Cygnus X, the Aquila rift and Taurus.
dustmap plot "$folder/run" -o "$folder/figures/clouds" --kind los --direction 210.1,-19.3 \
  --direction 79.9,0.8 --direction 27.0,4.0 --direction 171.6,-15.8
dustmap view "$folder/run" -o "$folder/map.html" --overwrite
"$python" "$root/scripts/sky_slice.py" "$folder/run/map.zarr" --distance 400 \
  -o "$folder/figures/density_400pc.png"
mkdir -p "$folder/compare"
dustmap compare "$folder/run" held-out -o "$folder/compare/stars" --overwrite
# The map is in A_V and the reference in E(B-V), whose own scale differs by some 15%.
reference=$data/bayestar2019_cart128_20pc.npz
if [ -f "$reference" ]; then
  dustmap compare "$folder/run" "$reference" -o "$folder/compare/map" --factor 3.1 --overwrite
fi
"$python" "$root/scripts/real_map_summary.py" "$folder"
