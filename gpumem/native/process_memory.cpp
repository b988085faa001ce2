// What NVML lists as in use by processes on a GPU; see the header.
#include "process_memory.h"

#include <dlfcn.h>

namespace gpumem {
namespace {

using Device = struct DeviceTag*;

// nvmlProcessInfo_v1_t.
struct ProcessInfo {
  unsigned pid;
  unsigned long long bytes;
};

constexpr int kSuccess = 0;
constexpr int kTooSmall = 7;
constexpr unsigned kProcessesFirst = 32;
constexpr unsigned kProcessesMax = 4096;
constexpr unsigned long long kNotAvailable = ~0ull;

struct Functions {
  int (*init)() = nullptr;
  int (*get_device)(const char* uuid, Device* device) = nullptr;
  int (*list_processes)(Device device, unsigned* count, ProcessInfo* processes) = nullptr;
  bool is_ready = false;
};

Functions open_library() {
  Functions opened;
  void* library = dlopen("libnvidia-ml.so.1", RTLD_LAZY);
  if (!library) return opened;
  opened.init = reinterpret_cast<int (*)()>(dlsym(library, "nvmlInit_v2"));
  opened.get_device = reinterpret_cast<int (*)(const char*, Device*)>(dlsym(library, "nvmlDeviceGetHandleByUUID"));
  opened.list_processes = reinterpret_cast<int (*)(Device, unsigned*, ProcessInfo*)>(
      dlsym(library, "nvmlDeviceGetComputeRunningProcesses"));
  bool is_whole = opened.init && opened.get_device && opened.list_processes;
  opened.is_ready = is_whole && opened.init() == kSuccess;
  return opened;
}

}  // namespace

std::vector<ProcessMemory> list_process_memory(const std::string& gpu_uuid) {
  // Every time, as errors are rare: what is made once has a lock, which a child forked meanwhile would find held for
  // ever.
  const Functions nvml = open_library();
  std::vector<ProcessMemory> found;
  Device device = nullptr;
  if (!nvml.is_ready || nvml.get_device(gpu_uuid.c_str(), &device) != kSuccess) return found;
  unsigned count = kProcessesFirst;
  std::vector<ProcessInfo> listed(count);
  int result = nvml.list_processes(device, &count, listed.data());
  if (result == kTooSmall && count > listed.size() && count <= kProcessesMax) {
    listed.resize(count);
    result = nvml.list_processes(device, &count, listed.data());
  }
  if (result != kSuccess || count > listed.size()) return found;
  for (unsigned i = 0; i < count; ++i)
    if (listed[i].bytes != kNotAvailable) found.push_back(ProcessMemory{listed[i].pid, listed[i].bytes});
  return found;
}

}  // namespace gpumem
