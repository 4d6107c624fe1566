#!/usr/bin/env bash
# Serves Qwen2.5-VL-72B for judge=qwen25_vl_72b, with the settings of PicaEval_qwen.py. Run it in an environment of its
# own (pip install vllm), never in the trainer's: vllm pins another torch. 4 GPUs of 80 GB. Further options are passed on.
#   launch/judge_vllm.sh                                      then: judge.base_url=http://HOST:8000/v1
#   MODEL=Qwen/Qwen2.5-VL-7B-Instruct GPUS=1 launch/judge_vllm.sh --port 8001
set -euo pipefail
# generation-config vllm: no sampling settings from the model's own files.
exec vllm serve "${MODEL:-Qwen/Qwen2.5-VL-72B-Instruct}" \
  --tensor-parallel-size "${GPUS:-4}" \
  --dtype bfloat16 \
  --max-model-len 5120 \
  --gpu-memory-utilization 0.9 \
  --generation-config vllm \
  --limit-mm-per-prompt '{"image": 1}' \
  "$@"
