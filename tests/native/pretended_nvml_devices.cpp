// A pretended libnvidia-ml.so.1 whose devices a test sets: the functions that nvidia-ml-py calls to sample them.
#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

namespace {

constexpr int kSuccess = 0, kNotFound = 6, kInsufficientSize = 7;
constexpr int kDevices = 16, kLists = 3;

struct MemoryInfo {
  unsigned long long total, free, used;
};
struct MemoryInfoV2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};
struct ProcessInfo {
  unsigned pid;
  unsigned long long bytes;
  unsigned gpu_instance, compute_instance;
};
struct List {
  std::vector<ProcessInfo> processes;
  int code = kSuccess;
};
struct Device {
  MemoryInfoV2 memory = {0, 1000ull << 20, 100ull << 20, 600ull << 20, 300ull << 20};
  int memory_code = kSuccess;
  List lists[kLists];
  unsigned calls_growing = 0, growth = 0;  // the first list grows by so many in each of so many calls
};

std::mutex g_mutex;
Device g_devices[kDevices];
int g_device_count = 1;
int g_call_us = 0;
std::atomic<bool> g_is_hanging{false};
std::atomic<int> g_hanging{0};
std::atomic<unsigned long long> g_calls{0};

// What every call does first.
void enter() {
  ++g_calls;
  if (g_call_us) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(g_call_us);
    while (std::chrono::steady_clock::now() < end) {
    }
  }
  if (!g_is_hanging) return;
  ++g_hanging;
  while (g_is_hanging) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  --g_hanging;
}

int list_processes(void* handle, int which, unsigned* count, ProcessInfo* processes) {
  enter();
  const std::lock_guard<std::mutex> lock(g_mutex);
  auto* device = static_cast<Device*>(handle);
  List& list = device->lists[which];
  if (list.code != kSuccess) return list.code;
  if (which == 0 && device->calls_growing) {
    --device->calls_growing;
    for (unsigned i = 0; i < device->growth; ++i) {
      list.processes.push_back({static_cast<unsigned>(1000000 + list.processes.size()), 1, 0, 0});
    }
  }
  const unsigned room = *count;
  *count = static_cast<unsigned>(list.processes.size());
  if (room < *count) return kInsufficientSize;
  if (*count) std::memcpy(processes, list.processes.data(), *count * sizeof(ProcessInfo));
  return kSuccess;
}

int copy_text(char* text, unsigned capacity, const char* what, int number) {
  if (capacity < 40) return kInsufficientSize;
  std::strcpy(text, what);
  text[std::strlen(what) - 1] = static_cast<char>('0' + number);
  return kSuccess;
}

int number_of(void* handle) {
  return static_cast<int>(static_cast<Device*>(handle) - g_devices);
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

// ---- a test's side ----

EXPORT void pretend_devices(int count) {
  const std::lock_guard<std::mutex> lock(g_mutex);
  for (Device& device : g_devices) device = Device();
  g_device_count = count;
}
EXPORT void pretend_memory(int device, unsigned long long total, unsigned long long used, unsigned long long free,
                           unsigned long long reserved, int code) {
  const std::lock_guard<std::mutex> lock(g_mutex);
  g_devices[device].memory = {0, total, reserved, free, used};
  g_devices[device].memory_code = code;
}
EXPORT void pretend_list(int device, int list, const unsigned* pids, const unsigned long long* bytes, unsigned count,
                         int code) {
  const std::lock_guard<std::mutex> lock(g_mutex);
  List& set = g_devices[device].lists[list];
  set.processes.clear();
  for (unsigned i = 0; i < count; ++i) set.processes.push_back({pids[i], bytes[i], 0, 0});
  set.code = code;
}
EXPORT void pretend_growth(int device, unsigned growth, unsigned calls) {
  const std::lock_guard<std::mutex> lock(g_mutex);
  g_devices[device].growth = growth;
  g_devices[device].calls_growing = calls;
}
EXPORT void pretend_hang(int is_hanging) {
  g_is_hanging = is_hanging != 0;
}
EXPORT int pretend_hanging() {
  return g_hanging;
}
EXPORT void pretend_call_us(int call_us) {
  g_call_us = call_us;
}
EXPORT unsigned long long pretend_calls() {
  return g_calls;
}
EXPORT void* pretend_handle(int device) {
  return &g_devices[device];
}

// ---- NVML's side ----

EXPORT int nvmlInitWithFlags(unsigned) {
  return kSuccess;
}
EXPORT const char* nvmlErrorString(int code) {
  return code == 3 ? "Not Supported" : code == 4 ? "Insufficient Permissions" : "Pretended Error";
}
EXPORT int nvmlSystemGetDriverVersion(char* text, unsigned capacity) {
  return copy_text(text, capacity, "580.159.0_", 4);
}
EXPORT int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = static_cast<unsigned>(g_device_count);
  return kSuccess;
}
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** handle) {
  if (static_cast<int>(index) >= g_device_count) return kNotFound;
  *handle = &g_devices[index];
  return kSuccess;
}
EXPORT int nvmlDeviceGetUUID(void* handle, char* text, unsigned capacity) {
  return copy_text(text, capacity, "GPU-0000000_", number_of(handle));
}
EXPORT int nvmlDeviceGetName(void* handle, char* text, unsigned capacity) {
  return copy_text(text, capacity, "Pretended _", number_of(handle));
}
EXPORT int nvmlDeviceGetMemoryInfo(void* handle, MemoryInfo* memory) {
  enter();
  const std::lock_guard<std::mutex> lock(g_mutex);
  const MemoryInfoV2& figures = static_cast<Device*>(handle)->memory;
  *memory = {figures.total, figures.free, figures.total - figures.free};
  return kSuccess;
}
EXPORT int nvmlDeviceGetMemoryInfo_v2(void* handle, MemoryInfoV2* memory) {
  enter();
  const std::lock_guard<std::mutex> lock(g_mutex);
  const auto* device = static_cast<Device*>(handle);
  if (memory->version != 0x02000028) return kNotFound;
  const unsigned version = memory->version;
  *memory = device->memory;
  memory->version = version;
  return device->memory_code;
}
EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void* handle, unsigned* count, ProcessInfo* processes) {
  return list_processes(handle, 0, count, processes);
}
EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v3(void* handle, unsigned* count, ProcessInfo* processes) {
  return list_processes(handle, 1, count, processes);
}
EXPORT int nvmlDeviceGetMPSComputeRunningProcesses_v3(void* handle, unsigned* count, ProcessInfo* processes) {
  return list_processes(handle, 2, count, processes);
}
