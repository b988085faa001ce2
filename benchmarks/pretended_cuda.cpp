// A CUDA runtime that owns a pretended GPU: enough for a CUDA build of torch to allocate.
//
// Owns: what is asked between `import torch` and a tensor without content. Must not know: kernels, the driver, which is
// tests/native/pretended_driver.cpp. Memory is addresses alone; whatever is not here is answered 0 by stubs that
// pretended_cuda.py makes of the runtime's list of symbols.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace {

constexpr size_t kCardBytes = size_t{64} << 20;  // as the driver's
constexpr size_t kGranule = size_t{2} << 20;
constexpr int kVersion = 13000;
constexpr uint64_t kFirstAddress = 0x400000000000;

std::atomic<uint64_t> next_address{kFirstAddress};
std::atomic<uint64_t> next_handle{0x1000};

int take_handle(void** handle) {
  *handle = reinterpret_cast<void*>(next_handle.fetch_add(16));
  return 0;
}

template <class Value>
int say(Value* place, Value value) {
  *place = value;
  return 0;
}

// The beginning of cudaDeviceProp, the same in CUDA 12 and 13.
struct Properties {
  char name[256];
  char ids[28];
  size_t card_bytes;
  size_t shared_bytes;
  int registers_per_block;
  int warp_threads;
  size_t pitch_bytes;
  int limits[8];  // threads of a block, their three dimensions, the grid's three; a clock, or nothing
  size_t constant_bytes;
  int major;
  int minor;
};

}  // namespace

extern "C" {

// The runtime.
int cudaGetDeviceCount(int* count) {
  return say(count, 1);
}
int cudaGetDevice(int* device) {
  return say(device, 0);
}
int cudaMalloc(void** address, size_t bytes) {
  *address = reinterpret_cast<void*>(next_address.fetch_add((bytes + kGranule - 1) / kGranule * kGranule));
  return 0;
}
int cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  return say(free_bytes, kCardBytes) + say(total_bytes, kCardBytes);
}
int cudaGetDeviceProperties(Properties* properties, int) {
  std::strcpy(properties->name, "pretended GPU");
  properties->card_bytes = kCardBytes;
  properties->warp_threads = 32;
  properties->major = 9;
  properties->minor = 0;
  return 0;
}
int cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return say(least, 0) + say(greatest, -5);
}
int cudaStreamCreateWithPriority(void** stream, unsigned, int) {
  return take_handle(stream);
}
int cudaStreamIsCapturing(void*, int* status) {
  return say(status, 0);
}
int cudaStreamGetCaptureInfo(void*, int* status, ...) {
  return say(status, 0);
}
int cudaEventCreateWithFlags(void** event, unsigned) {
  return take_handle(event);
}
int cudaDriverGetVersion(int* version) {
  return say(version, kVersion);
}
int cudaRuntimeGetVersion(int* version) {
  return say(version, kVersion);
}
int cudaDeviceGetAttribute(int* value, int, int) {
  return say(value, 1);
}
int cudaDeviceCanAccessPeer(int* value, int, int) {
  return say(value, 0);
}
const char* cudaGetErrorString(int) {
  return "pretended";
}
const char* cudaGetErrorName(int) {
  return "pretended";
}
int cudaGetDriverEntryPointByVersion(const char*, void** function, unsigned, unsigned long long, int* result) {
  *function = nullptr;
  return result ? say(result, 1) : 0;
}
void** __cudaRegisterFatBinary(void*) {
  static void* handle[4];
  return handle;
}
}
