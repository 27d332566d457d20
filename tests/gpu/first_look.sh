#!/usr/bin/env bash
# A quick look at the bare library on a GPU machine, without pytest, Docker or the Python package.
set -u
cd "$(dirname "$0")/../.."
out=${OUT:-/tmp}
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
python3 -m pip list 2>/dev/null | grep -iE '^(click|docker|humanfriendly|pyyaml|rich|nvidia-ml-py|pytest|pynvml|ruff) ' | tr '\n' ';'; echo
make -s -C lib library || exit 1
lib=$PWD/lib/build/libvgpu.so
limited() { # memory, sm, command...
  local memory=$1 sm=$2; shift 2
  rm -f /tmp/usage; env LD_PRELOAD="$lib" ${memory:+CUDA_DEVICE_MEMORY_LIMIT=$memory} ${sm:+CUDA_DEVICE_SM_LIMIT=$sm} \
    CUDA_DEVICE_MEMORY_SHARED_CACHE=/tmp/usage "$@"
}
echo "== nvidia-smi under 2g"; limited 2g "" nvidia-smi --query-gpu=memory.total,memory.used,memory.free --format=csv,noheader
for allocator in "" expandable_segments:True backend:cudaMallocAsync; do
  echo "== torch, allocator '${allocator:-default}'"; limited 2g "" env PYTORCH_CUDA_ALLOC_CONF="$allocator" timeout 90 python3 tests/gpu/programs/torch_memory.py
done
echo "== cupy"; limited 4g "" timeout 60 python3 tests/gpu/programs/cupy_memory.py
echo "== jax"; limited 4g "" timeout 90 python3 tests/gpu/programs/jax_memory.py 2>&1 | tail -3
cuda=$(ls -d /usr/local/cuda*/include 2>/dev/null | head -1)
gcc -O2 -I"$cuda" tests/bench/programs/calls.c -ldl -o /tmp/calls
for i in 1 2 3; do
  echo "== calls: native, preloaded, limited memory, limited memory and compute"
  /tmp/calls; LD_PRELOAD="$lib" /tmp/calls; limited 8g "" /tmp/calls; limited 8g 99 /tmp/calls
done
gcc -O2 tests/gpu/programs/addresses.c -ldl -o /tmp/addresses
cuda_file=$(python3 -c "import ctypes; ctypes.CDLL('libcuda.so.1'); print([l.split()[-1] for l in open('/proc/self/maps') if 'libcuda.so' in l][0])")
nm -D --defined-only "$cuda_file" | awk '$3 ~ /^cu/ {sub(/@.*/, "", $3); print $3}' | /tmp/addresses
echo "== cost of a preload: 1000 x /bin/true"
time (for i in $(seq 1000); do /bin/true; done); time (for i in $(seq 1000); do LD_PRELOAD=$lib /bin/true; done)
for kind in matmul graph; do
  echo "== $kind: native, preloaded, 20, 50, 80"
  python3 tests/bench/programs/loop.py $kind 4
  LD_PRELOAD=$lib python3 tests/bench/programs/loop.py $kind 4
  for sm in 20 50 80; do limited "" $sm timeout 100 python3 tests/bench/programs/loop.py $kind 5; done
done
