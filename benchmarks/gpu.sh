#!/usr/bin/env bash
# Ten minutes on one H100, H200 or card of that class, no download: samples a second, utilisation and peak memory of
# LoRA on FLUX.1-Kontext (12 B) and Qwen-Image-Edit (20 B) at 1024x1024, beside what `physedit estimate` tells.
#   benchmarks/gpu.sh                    writes runs/gpu_benchmark/results.json and table.md
#   benchmarks/gpu.sh --tiny             the same path on the CPU at tiny size; so too, unasked, where there is no GPU
#   PYTHON=python3.11 benchmarks/gpu.sh --models kontext --settings 1
set -euo pipefail
root="$(cd "$(dirname "$0")/.." && pwd)"
python="${PYTHON:-}"
if [ -z "$python" ]; then
    if [ -x "$root/.venv/bin/python" ]; then python="$root/.venv/bin/python"; else python=python3; fi
fi
PYTHONPATH="$root:$root/src${PYTHONPATH:+:$PYTHONPATH}" exec "$python" -m benchmarks.gpu "$@"
