#!/usr/bin/env bash
# A Python with CTranslate2, Marian and transformers from PyPI, in target/interop: scripts/interop-python.sh FILE [ARGUMENT...]
set -euo pipefail
cd "$(dirname "$0")/.."

environment=target/interop
if ! "$environment/bin/python" -c 'import ctranslate2, pymarian, sentencepiece, torch, transformers' 2>/dev/null; then
    python3 -m venv "$environment"
    "$environment/bin/pip" install --quiet ctranslate2==4.8.5 sentencepiece==0.2.3 protobuf pymarian==1.12.42 setuptools==81.0.0 tokenizers==0.23.3 torch==2.11.0 transformers==5.23.0
fi
exec "$environment/bin/python" "$@"
