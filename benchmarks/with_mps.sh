#!/bin/bash
# Run a command while CUDA's MPS shares the GPU: kernels of several processes then run at the same time, where they would
# otherwise take turns. MPS is set for the command if it exists and a kernel ran through it; either way the command runs.
#
#     bash benchmarks/with_mps.sh python -m benchmarks.session benchmarks/sessions/words.toml
#
# A fault of one process (an illegal access) ends all processes that share the GPU in this way.
pipe=$(mktemp -d)
quit() { echo quit | CUDA_MPS_PIPE_DIRECTORY=$pipe nvidia-cuda-mps-control >/dev/null 2>&1; }
if command -v nvidia-cuda-mps-control >/dev/null \
  && CUDA_MPS_PIPE_DIRECTORY=$pipe CUDA_MPS_LOG_DIRECTORY=$pipe nvidia-cuda-mps-control -d \
  && CUDA_MPS_PIPE_DIRECTORY=$pipe timeout 60 python -c "import torch; torch.ones(3, device='cuda').sum().item()"; then
  export CUDA_MPS_PIPE_DIRECTORY=$pipe CUDA_MPS_LOG_DIRECTORY=$pipe MPS=1
  trap quit EXIT
  echo "MPS: on"
else
  quit
  echo "MPS: off, processes take turns on the GPU"
fi
"$@"
