// A pretended libnvidia-ml.so.1: on one GPU, a process that is not asking, the one that is, and one that NVML cannot
// measure; more than a first call has room for where PRETEND_PROCESSES says so.
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace {

struct ProcessInfo {
  unsigned pid;
  unsigned long long bytes;
};

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int nvmlInit_v2() {
  return 0;
}

EXPORT int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  static int gpu = 0;
  *device = &gpu;
  return std::strcmp(uuid, "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f") == 0 ? 0 : 6;
}

EXPORT int nvmlDeviceGetComputeRunningProcesses(void*, unsigned* count, ProcessInfo* processes) {
  const char* more = std::getenv("PRETEND_PROCESSES");
  const unsigned listed = 3 + (more ? static_cast<unsigned>(std::atoi(more)) : 0);
  const unsigned room = *count;
  *count = listed;
  if (room < listed) return 7;
  processes[0] = ProcessInfo{4711, 3ull << 30};
  processes[1] = ProcessInfo{static_cast<unsigned>(::getpid()), 500ull << 20};
  processes[2] = ProcessInfo{4712, ~0ull};
  for (unsigned i = 3; i < listed; ++i) processes[i] = ProcessInfo{5000 + i, 1ull << 20};
  return 0;
}
