// A pretended libcuda.so.1 with one or two GPUs of 64 MiB or as said: enough of the driver for our allocator.
//
// Holds callers to the driver's manners and ends the process with a sentence when they are broken: a context must be
// current, memory may only be asked for in relaxed mode while a stream is captured, ranges are given back as they were
// taken. Any thread may call, as with a real one. Tests reach it through the pretend_* functions.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace {

using Address = unsigned long long;

constexpr size_t kMiB = 1024 * 1024;
constexpr size_t kGranule = 2 * kMiB;
constexpr int kSuccess = 0;
constexpr int kInvalidValue = 1;
constexpr int kOutOfMemory = 2;
constexpr int kInvalidHandle = 400;
constexpr int kNotReady = 600;

struct Event {
  uint64_t stream = 0;
  uint64_t work = 0;  // how much of the stream's work comes before it
};

struct State {
  size_t card_bytes = 64 * kMiB;
  size_t used_bytes = 0;
  int device_count = 1;
  Address next = 0x7f0000000000;
  std::map<Address, size_t> segments;
  std::map<Address, size_t> reservations;
  std::map<Address, size_t> pages;
  std::map<Address, std::set<int>> accessible;  // page -> devices that may
  std::map<Address, size_t> handles;
  std::map<uint64_t, uint64_t> queued;  // work begun by stream
  std::map<uint64_t, uint64_t> done;    // work finished by stream
  std::set<uint64_t> destroyed;         // streams
  int context_wait_count = 0;
  Address next_handle = 1;
  int retained = 0;
  bool is_captured = false;
  std::string failing;
  int failure = 0;
};

State& state() {
  static State* kept = new State;
  return *kept;
}

std::mutex& driver_mutex() {
  static std::mutex* kept = new std::mutex;
  return *kept;
}

thread_local std::vector<void*> contexts;  // pushed on this thread, the current one last
thread_local int capture_mode = 0;         // global

void* current() {
  return contexts.empty() ? nullptr : contexts.back();
}

void require(bool condition, const char* sentence) {
  if (condition) return;
  std::fprintf(stderr, "pretended driver: %s\n", sentence);
  std::abort();
}

// What a test wants this call to return, 0 for none.
int failure_of(const char* call) {
  if (state().failing != call) return 0;
  state().failing.clear();
  return state().failure;
}

void check_call(bool changes_memory) {
  require(current() != nullptr, "no context is current");
  if (changes_memory) require(!state().is_captured || capture_mode == 2, "memory was touched during a capture");
}

int take(size_t bytes) {
  if (bytes > state().card_bytes - state().used_bytes) return kOutOfMemory;
  state().used_bytes += bytes;
  return kSuccess;
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT void pretend_card(size_t card_bytes, int device_count) {
  std::lock_guard<std::mutex> lock(driver_mutex());
  state().card_bytes = card_bytes;
  state().device_count = device_count;
}
EXPORT size_t pretend_used_bytes() {
  std::lock_guard<std::mutex> lock(driver_mutex());
  return state().used_bytes;
}
// Of mapped pages, what a device may read and write.
EXPORT size_t pretend_accessible_bytes(int device) {
  std::lock_guard<std::mutex> lock(driver_mutex());
  size_t bytes = 0;
  for (const auto& [page, devices] : state().accessible) bytes += devices.count(device) ? state().pages[page] : 0;
  return bytes;
}
EXPORT int pretend_retained() {
  std::lock_guard<std::mutex> lock(driver_mutex());
  return state().retained;
}
EXPORT int pretend_depth() {
  return static_cast<int>(contexts.size());
}
// As the program's own runtime does: a device's context is current on this thread; -1 none.
EXPORT void pretend_current(int device) {
  contexts.clear();
  if (device >= 0) contexts.push_back(reinterpret_cast<void*>(static_cast<uintptr_t>(0x1000 + device)));
}
EXPORT void pretend_capture(int is_captured) {
  std::lock_guard<std::mutex> lock(driver_mutex());
  state().is_captured = is_captured != 0;
}
EXPORT void pretend_finish(uint64_t stream) {
  std::lock_guard<std::mutex> lock(driver_mutex());
  state().done[stream] = state().queued[stream];
}
EXPORT void pretend_destroy(uint64_t stream) {
  std::lock_guard<std::mutex> lock(driver_mutex());
  state().destroyed.insert(stream);
}
EXPORT int pretend_context_waits() {
  std::lock_guard<std::mutex> lock(driver_mutex());
  return state().context_wait_count;
}
EXPORT void pretend_failure(const char* call, int result) {
  std::lock_guard<std::mutex> lock(driver_mutex());
  state().failing = call;
  state().failure = result;
}

EXPORT int cuInit(unsigned) {
  return kSuccess;
}
EXPORT int cuGetErrorName(int result, const char** name) {
  *name = result == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_OTHER";
  return kSuccess;
}
EXPORT int cuGetErrorString(int result, const char** text) {
  *text = result == 700 ? "an illegal memory access was encountered" : "another error";
  return kSuccess;
}
EXPORT int cuDeviceGetCount(int* count) {
  std::lock_guard<std::mutex> lock(driver_mutex());
  *count = state().device_count;
  return kSuccess;
}
EXPORT int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return kSuccess;
}
EXPORT int cuDeviceGetName(char* name, int capacity, int device) {
  std::snprintf(name, static_cast<size_t>(capacity), "Pretended GPU %d", device);
  return kSuccess;
}
EXPORT int cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
  for (int i = 0; i < 16; ++i) uuid[i] = static_cast<unsigned char>(16 * device + i);
  return kSuccess;
}
EXPORT int cuDeviceTotalMem_v2(size_t* bytes, int) {
  std::lock_guard<std::mutex> lock(driver_mutex());
  *bytes = state().card_bytes;
  return kSuccess;
}
EXPORT int cuDeviceGetAttribute(int* value, int, int) {
  *value = 1;
  return kSuccess;
}
EXPORT int cuDevicePrimaryCtxRetain(void** context, int device) {
  std::lock_guard<std::mutex> lock(driver_mutex());
  ++state().retained;
  *context = reinterpret_cast<void*>(static_cast<uintptr_t>(0x1000 + device));
  return failure_of("cuDevicePrimaryCtxRetain");
}
EXPORT int cuDevicePrimaryCtxGetState(int, unsigned* flags, int* is_active) {
  *flags = 0;
  *is_active = 1;
  return kSuccess;
}
EXPORT int cuDevicePrimaryCtxRelease_v2(int) {
  std::lock_guard<std::mutex> lock(driver_mutex());
  --state().retained;
  return kSuccess;
}
EXPORT int cuCtxGetCurrent(void** context) {
  *context = current();
  return kSuccess;
}
EXPORT int cuCtxGetDevice(int* device) {
  if (!current()) return kInvalidValue;
  *device = static_cast<int>(reinterpret_cast<uintptr_t>(current()) - 0x1000);
  return kSuccess;
}
EXPORT int cuCtxPushCurrent_v2(void* context) {
  std::lock_guard<std::mutex> lock(driver_mutex());
  require(current() != context, "a context was pushed that is current");
  if (int result = failure_of("cuCtxPushCurrent")) return result;
  contexts.push_back(context);
  return kSuccess;
}
EXPORT int cuCtxPopCurrent_v2(void** context) {
  require(!contexts.empty(), "a context was popped where none is current");
  *context = current();
  contexts.pop_back();
  return kSuccess;
}
EXPORT int cuThreadExchangeStreamCaptureMode(int* mode) {
  int before = capture_mode;
  capture_mode = *mode;
  *mode = before;
  return kSuccess;
}

EXPORT int cuMemAlloc_v2(Address* address, size_t bytes) {
  std::lock_guard<std::mutex> lock(driver_mutex());
  check_call(true);
  if (int result = failure_of("cuMemAlloc")) return result;
  if (int result = take(bytes)) return result;
  state().next -= (bytes + kGranule - 1) / kGranule * kGranule;
  *address = state().next;
  state().segments[*address] = bytes;
  return kSuccess;
}
EXPORT int cuMemFree_v2(Address address) {
  std::lock_guard<std::mutex> lock(driver_mutex());
  check_call(true);
  if (int result = failure_of("cuMemFree")) return result;
  auto segment = state().segments.find(address);
  require(segment != state().segments.end(), "a segment was freed that is none");
  state().used_bytes -= segment->second;
  state().segments.erase(segment);
  return kSuccess;
}
EXPORT int cuMemGetInfo_v2(size_t* free_bytes, size_t* card_bytes) {
  std::lock_guard<std::mutex> lock(driver_mutex());
  check_call(false);
  *free_bytes = state().card_bytes - state().used_bytes;
  *card_bytes = state().card_bytes;
  return failure_of("cuMemGetInfo");
}
EXPORT int cuMemAddressReserve(Address* address, size_t bytes, size_t, Address, unsigned long long) {
  std::lock_guard<std::mutex> lock(driver_mutex());
  check_call(true);
  require(bytes % kGranule == 0, "a reservation is no multiple of the granule");
  state().next -= bytes;
  *address = state().next;
  state().reservations[*address] = bytes;
  return kSuccess;
}
EXPORT int cuMemAddressFree(Address address, size_t bytes) {
  std::lock_guard<std::mutex> lock(driver_mutex());
  check_call(true);
  auto range = state().reservations.find(address);
  require(range != state().reservations.end() && range->second == bytes, "a reservation was freed otherwise than made");
  auto page = state().pages.lower_bound(address);
  require(page == state().pages.end() || page->first >= address + bytes, "a reservation was freed with pages in it");
  state().reservations.erase(range);
  return kSuccess;
}
EXPORT int cuMemCreate(Address* handle, size_t bytes, const void* properties, unsigned long long) {
  std::lock_guard<std::mutex> lock(driver_mutex());
  check_call(true);
  int fields[4];
  std::memcpy(fields, properties, sizeof fields);
  require(fields[0] == 1 && fields[2] == 1, "memory was asked for that is not pinned on a device");
  require(bytes % kGranule == 0, "a page is no multiple of the granule");
  if (int result = failure_of("cuMemCreate")) return result;
  if (int result = take(bytes)) return result;
  *handle = state().next_handle++;
  state().handles[*handle] = bytes;
  return kSuccess;
}
EXPORT int cuMemRelease(Address handle) {
  std::lock_guard<std::mutex> lock(driver_mutex());
  check_call(true);
  require(state().handles.count(handle) == 1, "a handle was released that is none");
  bool is_mapped = state().handles[handle] == 0;
  if (!is_mapped) state().used_bytes -= state().handles[handle];
  state().handles.erase(handle);
  return kSuccess;
}
EXPORT int cuMemMap(Address address, size_t bytes, size_t, Address handle, unsigned long long) {
  std::lock_guard<std::mutex> lock(driver_mutex());
  check_call(true);
  require(state().handles[handle] == bytes, "a page was mapped with other bytes than it has");
  require(state().pages.count(address) == 0, "a page was mapped over another");
  if (int result = failure_of("cuMemMap")) return result;
  state().pages[address] = bytes;
  state().handles[handle] = 0;  // its memory is the mapping's now
  return kSuccess;
}
EXPORT int cuMemUnmap(Address address, size_t bytes) {
  std::lock_guard<std::mutex> lock(driver_mutex());
  check_call(true);
  auto page = state().pages.find(address);
  require(page != state().pages.end() && page->second == bytes, "a page was unmapped otherwise than mapped");
  state().used_bytes -= bytes;
  state().pages.erase(page);
  state().accessible.erase(address);
  return kSuccess;
}
EXPORT int cuMemSetAccess(Address address, size_t bytes, const void* descriptions, size_t count) {
  std::lock_guard<std::mutex> lock(driver_mutex());
  check_call(true);
  std::vector<int> fields(3 * count);
  std::memcpy(fields.data(), descriptions, fields.size() * sizeof(int));
  for (size_t i = 0; i < count; ++i)
    require(fields[3 * i] == 1 && fields[3 * i + 2] == 3, "access was given otherwise than to a device");
  if (int result = failure_of("cuMemSetAccess")) return result;
  for (size_t offset = 0; offset < bytes;) {
    auto page = state().pages.find(address + offset);
    require(page != state().pages.end(), "access was given to what is not mapped");
    for (size_t i = 0; i < count; ++i) state().accessible[page->first].insert(fields[3 * i + 1]);
    offset += page->second;
  }
  return kSuccess;
}

EXPORT int cuEventCreate(Event** event, unsigned flags) {
  check_call(false);
  require(flags == 2, "an event was made that takes times");
  *event = new Event;
  return kSuccess;
}
EXPORT int cuEventDestroy_v2(Event* event) {
  check_call(false);
  delete event;
  return kSuccess;
}
EXPORT int cuEventRecord(Event* event, void* stream) {
  std::lock_guard<std::mutex> lock(driver_mutex());
  check_call(true);
  if (int result = failure_of("cuEventRecord")) return result;
  if (state().destroyed.count(reinterpret_cast<uintptr_t>(stream))) return kInvalidHandle;
  event->stream = reinterpret_cast<uintptr_t>(stream);
  event->work = ++state().queued[event->stream];
  return kSuccess;
}
EXPORT int cuEventQuery(Event* event) {
  std::lock_guard<std::mutex> lock(driver_mutex());
  check_call(true);
  if (int result = failure_of("cuEventQuery")) return result;
  return state().done[event->stream] >= event->work ? kSuccess : kNotReady;
}
EXPORT int cuEventSynchronize(Event* event) {
  std::lock_guard<std::mutex> lock(driver_mutex());
  check_call(true);
  if (state().done[event->stream] < event->work) state().done[event->stream] = event->work;
  return kSuccess;
}
EXPORT int cuStreamSynchronize(void* stream) {
  std::lock_guard<std::mutex> lock(driver_mutex());
  check_call(false);
  if (state().destroyed.count(reinterpret_cast<uintptr_t>(stream))) return kInvalidHandle;
  state().done[reinterpret_cast<uintptr_t>(stream)] = state().queued[reinterpret_cast<uintptr_t>(stream)];
  return kSuccess;
}
EXPORT int cuCtxSynchronize() {
  std::lock_guard<std::mutex> lock(driver_mutex());
  check_call(false);
  ++state().context_wait_count;
  for (const auto& [stream, work] : state().queued) state().done[stream] = work;
  return failure_of("cuCtxSynchronize");
}
