#include "mps.h"

#include "mps_wire.h"
#include "state.h"

static int connection = -1;
static uint64_t leader;

static uint64_t owner_of(const char *pid) {
  unsigned slot;
  return state_find_process((uint32_t)atoi(pid), &slot) ? atomic_load(&state_process(slot)->owner) : 0;
}

CUresult mps_connect(void) {
  char answer[MPS_LINE];
  if (getenv(MPS_IS_SERVER))
    return CUDA_SUCCESS;
  int control = mps_open("control");
  if (control < 0)
    return CUDA_SUCCESS;
  bool good = mps_ask(control, MPS_CLIENT, answer);
  close(control);
  connection = good ? mps_open("server") : -1;
  if (connection < 0)
    return CUDA_ERROR_MPS_CONNECTION_FAILED;
  leader = owner_of(answer);
  atomic_store(&state_process(state_own_slot())->mps_client, state_own_owner());
  return CUDA_SUCCESS;
}

uint64_t mps_leader(void) {
  return leader;
}

bool mps_is_client(void) {
  return connection >= 0;
}

unsigned mps_active_percent(void) {
  const char *text = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
  int percent = connection >= 0 && text ? atoi(text) : 100;
  return percent >= 1 && percent <= 100 ? (unsigned)percent : 100;
}

CUresult mps_state(void) {
  char said;
  ssize_t length = connection >= 0 ? recv(connection, &said, 1, MSG_PEEK | MSG_DONTWAIT) : -1;
  return length > 0 ? CUDA_ERROR_ILLEGAL_ADDRESS : length == 0 ? CUDA_ERROR_MPS_RPC_FAILURE : CUDA_SUCCESS;
}

void mps_leave_after_fork(void) {
  if (connection >= 0)
    close(connection);
  connection = -1;
}
