#!/usr/bin/env bash
# Holds `mt eval` to the real sacrebleu, and the event files of training to the real TensorBoard, both installed from PyPI:
# scripts/test-sacrebleu.sh [SETS [SEED]]
set -euo pipefail
cd "$(dirname "$0")/.."

environment=target/sacrebleu
if ! "$environment/bin/python" -c 'import sacrebleu, tensorboard' 2>/dev/null; then
    python3 -m venv "$environment"
    "$environment/bin/pip" install --quiet sacrebleu==2.6.0 tensorboard==2.21.0 setuptools==81.0.0
fi
"$environment/bin/python" tests/tensorboard/read.py target/release/mt
"$environment/bin/python" tests/sacrebleu/compare.py target/release/mt "$@"
