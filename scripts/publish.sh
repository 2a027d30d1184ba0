#!/usr/bin/env bash
# Makes of a run the folder that a journal or Zenodo wants: cubes, maps of the sky,
# samples, README, checksums, CITATION.cff, .zenodo.json, and an entry for a registry
# (dustmap fetch). Usage: scripts/publish.sh RUN FOLDER --title T --author "Family, Given"
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python="$here/../.venv/bin/python"
[ -x "$python" ] || "$here/install" || exit 1
exec "$python" "$here/publish.py" "$@"
