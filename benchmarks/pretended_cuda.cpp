// A CUDA runtime and driver in one library that own a pretended GPU: enough for a CUDA build of torch to allocate.
//
// Owns: what is asked between `import torch` and a tensor without content. Must not know: kernels. Memory is addresses
// alone; whatever is not here is answered 0 by stubs that pretended_cuda.py makes of the runtime's list of symbols.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace {

constexpr size_t kCardBytes = size_t{140} << 30;
constexpr size_t kUsedBytes = size_t{1} << 30;
constexpr size_t kGranule = size_t{2} << 20;
constexpr int kVersion = 13000;
constexpr uint64_t kFirstAddress = 0x400000000000;

std::atomic<uint64_t> next_address{kFirstAddress};
std::atomic<uint64_t> next_handle{0x1000};

template <class Pointer>
int take_memory(Pointer* address, size_t bytes) {
  *address = (Pointer)next_address.fetch_add((bytes + kGranule - 1) / kGranule * kGranule);
  return 0;
}

template <class Pointer>
int take_handle(Pointer* handle) {
  *handle = (Pointer)next_handle.fetch_add(16);
  return 0;
}

template <class Value>
int say(Value* place, Value value) {
  *place = value;
  return 0;
}

int say_memory(size_t* free_bytes, size_t* total_bytes) {
  *free_bytes = kCardBytes - kUsedBytes;
  *total_bytes = kCardBytes;
  return 0;
}

void* const kContext = reinterpret_cast<void*>(0x55);

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
  return take_memory(address, bytes);
}
int cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  return say_memory(free_bytes, total_bytes);
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

// The driver, as gpumem's own allocator uses it.
int cuInit(unsigned) {
  return 0;
}
int cuGetErrorName(int, const char** text) {
  return say(text, "pretended");
}
int cuGetErrorString(int, const char** text) {
  return say(text, "pretended");
}
int cuDriverGetVersion(int* version) {
  return say(version, kVersion);
}
int cuDeviceGet(int* device, int ordinal) {
  return say(device, ordinal);
}
int cuDeviceGetCount(int* count) {
  return say(count, 1);
}
int cuDeviceGetName(char* name, int capacity, int) {
  std::strncpy(name, "pretended GPU", static_cast<size_t>(capacity));
  return 0;
}
int cuDeviceGetUuid_v2(char* uuid, int) {
  std::memset(uuid, 7, 16);
  return 0;
}
int cuDeviceTotalMem_v2(size_t* bytes, int) {
  return say(bytes, kCardBytes);
}
int cuDeviceGetAttribute(int* value, int, int) {
  return say(value, 1);
}
int cuDevicePrimaryCtxGetState(int, unsigned* flags, int* is_active) {
  return say(flags, 0u) + say(is_active, 1);
}
int cuDevicePrimaryCtxRetain(void** context, int) {
  return say(context, kContext);
}
int cuDevicePrimaryCtxRelease_v2(int) {
  return 0;
}
int cuCtxGetCurrent(void** context) {
  return say(context, kContext);
}
int cuCtxGetDevice(int* device) {
  return say(device, 0);
}
int cuCtxPushCurrent_v2(void*) {
  return 0;
}
int cuCtxPopCurrent_v2(void** context) {
  return context ? say(context, kContext) : 0;
}
int cuThreadExchangeStreamCaptureMode(int*) {
  return 0;
}
int cuMemAlloc_v2(unsigned long long* address, size_t bytes) {
  return take_memory(address, bytes);
}
int cuMemFree_v2(unsigned long long) {
  return 0;
}
int cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  return say_memory(free_bytes, total_bytes);
}
int cuMemAddressReserve(unsigned long long* address, size_t bytes, ...) {
  return take_memory(address, bytes);
}
int cuMemAddressFree(unsigned long long, size_t) {
  return 0;
}
int cuMemCreate(unsigned long long* handle, size_t, ...) {
  return take_handle(handle);
}
int cuMemRelease(unsigned long long) {
  return 0;
}
int cuMemMap(unsigned long long, ...) {
  return 0;
}
int cuMemUnmap(unsigned long long, size_t) {
  return 0;
}
int cuMemSetAccess(unsigned long long, ...) {
  return 0;
}
int cuEventCreate(void** event, unsigned) {
  return take_handle(event);
}
int cuEventDestroy_v2(void*) {
  return 0;
}
int cuEventRecord(void*, void*) {
  return 0;
}
int cuEventQuery(void*) {
  return 0;
}
int cuEventSynchronize(void*) {
  return 0;
}
int cuStreamSynchronize(void*) {
  return 0;
}
int cuCtxSynchronize() {
  return 0;
}
}
