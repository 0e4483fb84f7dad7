#!/usr/bin/env bash
# A Python with CTranslate2, Marian and transformers from PyPI, in target/interop: scripts/interop-python.sh FILE [ARGUMENT...]
set -euo pipefail
case ${1:-} in -h | --help) exec sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0" ;; esac

packages='ctranslate2==4.8.5 sentencepiece==0.2.3 protobuf==7.36.2 pymarian==1.12.42 setuptools==81.0.0 subword-nmt==0.3.8 tokenizers==0.23.3 torch==2.11.0'
exec "$(dirname "$0")/pinned-python.sh" target/interop "$packages transformers==5.23.0" "$@"
