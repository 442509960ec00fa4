#!/usr/bin/env bash
# Writes the lock files anew: exact pins with hashes, no host name (see docs/decisions/0002).
set -euo pipefail
cd "$(dirname "$0")/.."
tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
"${PYTHON:-python3}" -m venv "$tools"
"$tools/bin/pip" --quiet --disable-pip-version-check install uv
compile() {
    "$tools/bin/uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --upgrade \
        --no-header --no-annotate --no-emit-index-url --no-emit-find-links "$@"
}
compile pyproject.toml --all-extras --output-file requirements.lock
runtime=$(sed -n '/^\[project.optional-dependencies\]/,/^\[/{s/^\([a-z]*\) = \[.*/\1/p}' pyproject.toml | grep -vx dev | sed 's/^/--extra /')
# shellcheck disable=SC2086
compile pyproject.toml $runtime --constraint requirements.lock --output-file requirements-runtime.lock
compile --group build --constraint requirements.lock --output-file requirements-build.lock
compile pyproject.toml --extra spark --group examples --constraint requirements.lock --output-file requirements-examples.lock
compile --group data --no-deps --no-build-isolation --output-file requirements-data.lock
compile --group shopping --no-deps --output-file requirements-shopping.lock
