/* The simulated machine: read once per process from the YAML file that VGPUSIM_CONFIG names, or from where `vgpurun`
 * puts a container's own. */
#pragma once

#include "common.h"

#define SIM_CONTAINER_CONFIG "/.vgpurun/etc/sim.yaml"
#define SIM_MAX_DEVICES 16
#define SIM_MAX_KERNELS 256
#define SIM_TEXT_SIZE 96
#define SIM_PATH_SIZE 1024
#define SIM_UUID_SIZE 41 /* "GPU-" or "MIG-", 36 characters and the end */

struct device_config {
  char name[SIM_TEXT_SIZE];
  char uuid[SIM_UUID_SIZE]; /* "GPU-" or "MIG-" and lower-case hex */
  uint64_t memory_bytes;
  uint64_t context_overhead_bytes;
  uint64_t multiprocessors;
  uint64_t compute_capability; /* 10 * major + minor */
  uint64_t launch_overhead_ns;
  uint64_t launch_queue_depth;
  uint64_t copy_bytes_per_ms;
  uint64_t checkpoint_bytes_per_ms;
  uint64_t memory_bytes_per_ms;
  unsigned pci_bus;
  uint64_t mig_gpu; /* 0: a whole card; else an instance of the card with this number */
};

struct kernel_config {
  char name[SIM_TEXT_SIZE];
  uint64_t duration_ns;
};

struct sim_config {
  char state_file[SIM_PATH_SIZE]; /* empty: the default path */
  char driver_version[SIM_TEXT_SIZE];
  uint64_t cuda_version; /* 10 * major + minor */
  uint64_t default_kernel_ns;
  uint64_t start_ns; /* how long cuInit takes */
  uint64_t context_switch_ns;
  uint64_t nvidiactl;         /* whether the control device can be opened */
  uint64_t channels_off_ns;   /* how long it takes to take them off a device on which they run */
  uint64_t channels_stay_off; /* else they are put back at once */
  uint64_t kept_data_bytes;
  unsigned device_count;
  unsigned kernel_count;
  struct device_config devices[SIM_MAX_DEVICES];
  struct kernel_config kernels[SIM_MAX_KERNELS];
};

extern struct sim_config sim_config;

/* Fills sim_config, once; the caller holds a lock. False when the file is wrong: the first time with one line on stderr
 * that names the file, the line and what is wrong. */
bool config_load(void);

/* Whether a device is an instance of the same card as the one before it. */
bool config_shares_card(unsigned device);

/* The sixteen bytes of a device's UUID. */
void config_uuid_bytes(const struct device_config *device, unsigned char bytes[16]);

/* How long a kernel of this name takes: the config's table, else the name's ending (spin_50us), else the default. */
uint64_t config_kernel_ns(const char *name);
