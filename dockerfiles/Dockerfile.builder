# Builds libvgpu.so, the simulated driver and the program of `vgpurun verify` in a container, for a host without a compiler
# or without the CUDA headers. The build context is lib/. `vgpurun build-in-docker` uses this file, and copies them out.
#
# The default image has glibc 2.28, so that the library runs in every image with that glibc or a newer one.
ARG BASE_IMAGE=nvidia/cuda:12.8.1-devel-ubi8
FROM ${BASE_IMAGE}
RUN if command -v gcc >/dev/null && command -v make >/dev/null; then exit 0; fi; \
    if command -v apt-get >/dev/null; then apt-get update && apt-get install -y --no-install-recommends gcc make libc6-dev; \
    elif command -v dnf >/dev/null; then dnf install -y gcc make glibc-devel; \
    else echo "no gcc and make in this image, and neither apt-get nor dnf to install them" >&2; exit 1; fi
COPY . /src/lib
RUN make -C /src/lib BUILD=/build
