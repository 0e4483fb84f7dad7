#!/usr/bin/env bash
# A Python with sacrebleu and TensorBoard from PyPI, in target/sacrebleu: scripts/sacrebleu-python.sh FILE [ARGUMENT...]
set -euo pipefail
case ${1:-} in -h | --help) exec sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0" ;; esac

exec "$(dirname "$0")/pinned-python.sh" target/sacrebleu 'sacrebleu==2.6.0 tensorboard==2.21.0 setuptools==81.0.0' "$@"
