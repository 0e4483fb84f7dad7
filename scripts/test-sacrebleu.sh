#!/usr/bin/env bash
# Holds `mt eval` to the real sacrebleu, installed from PyPI: scripts/test-sacrebleu.sh [SETS [SEED]]
set -euo pipefail
cd "$(dirname "$0")/.."

environment=target/sacrebleu
if [ ! -x "$environment/bin/python" ]; then
    python3 -m venv "$environment"
    "$environment/bin/pip" install --quiet sacrebleu==2.6.0
fi
"$environment/bin/python" tests/sacrebleu/compare.py target/release/mt "$@"
