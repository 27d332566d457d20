#!/usr/bin/env bash
# Two containers on one GPU at the same time, limited to 30 % and 70 % of it, next to one that has the GPU to itself.
#
#   examples/two_tenants.sh [IMAGE]          IMAGE needs python3 and glibc; the default is python:3-slim
#   VGPURUN_DRIVER=sim examples/two_tenants.sh      on the simulated GPU
set -euo pipefail

image=${1:-python:3-slim}
seconds=5
program=$(realpath "$(dirname "$0")")/demo_program.py

# Prints how many kernels of 1 ms a container with these options does per second.
rate() {
  vgpurun run --rm --gpus device=0 --driver "${VGPURUN_DRIVER:-auto}" -v "$program:/demo_program.py:ro" "$@" "$image" \
    python3 /demo_program.py work "$seconds" | sed 's/.*"kernels_per_second": \([0-9]*\).*/\1/'
}

alone=$(rate)
echo "alone, no limit: $alone kernels per second"

results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
for percent in 30 70; do
  rate --mem 2g --sm "$percent" >"$results/$percent" &
done
wait

for percent in 30 70; do
  kernels=$(<"$results/$percent")
  echo "limited to $percent %: $kernels kernels per second, $(((100 * kernels + alone / 2) / alone)) % of what one does alone"
done
