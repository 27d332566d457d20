# Builds the simulated driver. Included by ../Makefile, or used alone: make -f sim/sim.mk, from lib/.
# Variables: CC, CFLAGS, CUDA_INCLUDE (the -I flags for cuda.h and nvml.h) and BUILD.

CC ?= cc
BUILD ?= build
CUDA_INCLUDE ?= $(or $(INCLUDES),-I$(or $(CUDA_HOME),/usr/local/cuda)/include)

SIM_OUT := $(BUILD)/sim
SIM_OBJ := $(SIM_OUT)/obj
SIM_CFLAGS := -O2 -g $(CFLAGS) -std=c11 -Wall -Wextra -Werror -fPIC -fvisibility=hidden -pthread -D_GNU_SOURCE
SIM_LDFLAGS := $(LDFLAGS) -pthread -Wl,--no-undefined

SIM_SHARED := busy cards cgroups common config limits pci pieces scalar schedule shared_schedule state state_file timeline yaml
SIM_NVML := $(SIM_SHARED) $(patsubst sim/%.c,%,$(wildcard sim/nvml_*.c))
SIM_SMI := $(patsubst sim/%.c,%,$(wildcard sim/nvidia_smi*.c))
SIM_PROGRAMS := mps_control mps_server
SIM_CUDA := $(filter-out nvml_% nvidia_smi% $(SIM_PROGRAMS),$(patsubst sim/%.c,%,$(wildcard sim/*.c)))

# ../Makefile says what to do where the headers are not found.
SIM_HEADERS := $(if $(filter undefined,$(origin CUDA_H)),,headers)

.PHONY: sim sim-clean
sim: $(SIM_OUT)/libcuda.so $(SIM_OUT)/libnvidia-ml.so $(SIM_OUT)/nvidia-smi \
     $(SIM_PROGRAMS:mps_%=$(SIM_OUT)/nvidia-cuda-mps-%)

$(SIM_OUT)/libcuda.so.1: $(SIM_CUDA:%=$(SIM_OBJ)/%.o)
$(SIM_OUT)/libnvidia-ml.so.1: $(SIM_NVML:%=$(SIM_OBJ)/%.o)

$(SIM_OUT)/lib%.so.1:
	$(CC) $(SIM_CFLAGS) -shared -Wl,-soname,$(@F) -o $@.new $^ $(SIM_LDFLAGS)
	mv $@.new $@

$(SIM_OUT)/lib%.so: $(SIM_OUT)/lib%.so.1
	ln -sf $(<F) $@

$(SIM_OUT)/nvidia-smi: $(SIM_SMI:%=$(SIM_OBJ)/%.o)
	$(CC) $(SIM_CFLAGS) -o $@ $^ $(LDFLAGS) -ldl

$(SIM_OUT)/nvidia-cuda-mps-%: $(SIM_OBJ)/mps_%.o
	$(CC) $(SIM_CFLAGS) -o $@ $^ $(LDFLAGS) -ldl

$(SIM_OBJ)/%.o: sim/%.c sim/sim.mk | $(SIM_OBJ) $(SIM_HEADERS)
	$(CC) $(SIM_CFLAGS) $(CUDA_INCLUDE) -MMD -MP -c -o $@ $<

$(SIM_OBJ):
	mkdir -p $@

sim-clean:
	rm -rf $(SIM_OUT)

-include $(wildcard $(SIM_OBJ)/*.d)
