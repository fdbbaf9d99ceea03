#!/usr/bin/env bash
# Install a wheel in a bare environment and let check.py use it: run.sh PYTHON [WHEEL]; by default the newest of dist/.
set -euo pipefail
python=$1
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
wheel=${2:-$(ls -t "$root"/dist/*.whl | head -1)}
wheel=$(realpath "$wheel")
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
"$python" -m venv "$place/venv"
cd "$place"
echo "$(basename "$wheel") on $("$python" --version)"
venv/bin/python -m pip install --quiet --disable-pip-version-check "$wheel"
venv/bin/python "$root/tests/wheel/check.py"
venv/bin/python -m pip install --quiet --disable-pip-version-check "$wheel[train]"
venv/bin/python "$root/tests/wheel/check.py" --demo
