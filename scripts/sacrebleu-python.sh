#!/usr/bin/env bash
# A Python with sacrebleu and TensorBoard from PyPI, in target/sacrebleu: scripts/sacrebleu-python.sh FILE [ARGUMENT...]
set -euo pipefail
cd "$(dirname "$0")/.."

environment=target/sacrebleu
if ! "$environment/bin/python" -c 'import sacrebleu, tensorboard' 2>/dev/null; then
    python3 -m venv "$environment"
    "$environment/bin/pip" install --quiet sacrebleu==2.6.0 tensorboard==2.21.0 setuptools==81.0.0
fi
exec "$environment/bin/python" "$@"
