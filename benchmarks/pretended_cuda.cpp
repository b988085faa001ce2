// A CUDA runtime over the driver that the tests pretend: enough for a CUDA build of torch to allocate.
//
// Owns: what is asked between `import torch` and a tensor without content. Must not know: kernels, memory and how far
// streams are, which are the driver's (tests/native/pretended_driver.cpp); whatever is not here is answered 0 by stubs
// that pretended_cuda.py makes of lists of symbols. PRETENDED_GPUS: how many; 1 without.
#include <dlfcn.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

extern "C" {
// The driver's.
void pretend_card(size_t card_bytes, int device_count);
void pretend_current(int device);
void pretend_capture(int is_captured);
int cuCtxGetCurrent(void** context);
int cuCtxSynchronize();
int cuDeviceGetCount(int* count);
int cuDeviceGetUuid_v2(unsigned char* uuid, int device);
int cuDeviceTotalMem_v2(size_t* bytes, int device);
int cuMemAlloc_v2(unsigned long long* address, size_t bytes);
int cuMemFree_v2(unsigned long long address);
int cuMemGetInfo_v2(size_t* free_bytes, size_t* card_bytes);
int cuStreamSynchronize(void* stream);
int cuEventCreate(void** event, unsigned flags);
int cuEventDestroy_v2(void* event);
int cuEventRecord(void* event, void* stream);
int cuEventQuery(void* event);
int cuEventSynchronize(void* event);
int cuThreadExchangeStreamCaptureMode(int* mode);
}

namespace {

constexpr size_t kCardBytes = size_t{140} << 30;  // of all devices together
constexpr int kVersion = 13000;
constexpr int kCapturing = 1;
constexpr unsigned kWithoutTiming = 2;

std::atomic<uint64_t> next_handle{0x1000};
thread_local int current_device = 0;
thread_local void* captured = nullptr;  // the stream of this thread's capture
thread_local unsigned long long capture_number = 0;

[[maybe_unused]] const bool is_card_set = [] {
  const char* asked = std::getenv("PRETENDED_GPUS");
  pretend_card(kCardBytes, asked ? std::atoi(asked) : 1);
  return true;
}();

// A thread has a context from its first call on.
void need_context() {
  void* context = nullptr;
  cuCtxGetCurrent(&context);
  if (!context) pretend_current(current_device);
}

int take_handle(void** handle) {
  *handle = reinterpret_cast<void*>(next_handle.fetch_add(16));
  return 0;
}

template <class Value>
int say(Value* place, Value value) {
  *place = value;
  return 0;
}

int say_capture(void* stream, int* status) {
  return say(status, stream && stream == captured ? kCapturing : 0);
}

int say_nothing() {
  return 0;
}

// A function of the driver by the name that programs know, without its version.
int say_function(const char* name, void** function, int* result) {
  static void* const driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  *function = dlsym(driver, (std::string(name) + "_v2").c_str());
  if (!*function) *function = dlsym(driver, name);
  if (!*function) *function = reinterpret_cast<void*>(say_nothing);
  return result ? say(result, 0) : 0;
}

// The beginning of cudaDeviceProp, the same in CUDA 12 and 13.
struct Properties {
  char name[256];
  unsigned char uuid[16];
  char luid[12];  // and what it is worth
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

int cudaGetDeviceCount(int* count) {
  return cuDeviceGetCount(count);
}
int cudaGetDevice(int* device) {
  need_context();
  return say(device, current_device);
}
int cudaSetDevice(int device) {
  current_device = device;
  pretend_current(device);
  return 0;
}
int cudaMalloc(void** address, size_t bytes) {
  need_context();
  return cuMemAlloc_v2(reinterpret_cast<unsigned long long*>(address), bytes);
}
int cudaFree(void* address) {
  need_context();
  return address ? cuMemFree_v2(reinterpret_cast<uintptr_t>(address)) : 0;
}
int cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  need_context();
  return cuMemGetInfo_v2(free_bytes, total_bytes);
}
int cudaGetDeviceProperties(Properties* properties, int device) {
  std::strcpy(properties->name, "pretended GPU");
  cuDeviceGetUuid_v2(properties->uuid, device);
  cuDeviceTotalMem_v2(&properties->card_bytes, device);
  properties->warp_threads = 32;
  properties->major = 9;
  properties->minor = 0;
  return 0;
}
int cudaGetDeviceProperties_v2(Properties* properties, int device) {
  return cudaGetDeviceProperties(properties, device);
}
int cudaDeviceSynchronize() {
  need_context();
  return cuCtxSynchronize();
}
int cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return say(least, 0) + say(greatest, -5);
}
int cudaStreamCreateWithPriority(void** stream, unsigned, int) {
  return take_handle(stream);
}
int cudaStreamSynchronize(void* stream) {
  need_context();
  return cuStreamSynchronize(stream);
}
int cudaStreamBeginCapture(void* stream, int) {
  captured = stream;
  ++capture_number;
  pretend_capture(1);
  return 0;
}
int cudaStreamEndCapture(void*, void** graph) {
  captured = nullptr;
  pretend_capture(0);
  return take_handle(graph);
}
int cudaStreamIsCapturing(void* stream, int* status) {
  return say_capture(stream, status);
}
int cudaStreamGetCaptureInfo(void* stream, int* status, unsigned long long* number, ...) {
  return say_capture(stream, status) + (number ? say(number, capture_number) : 0);
}
int cudaStreamGetCaptureInfo_v2(void* stream, int* status, unsigned long long* number, ...) {
  return say_capture(stream, status) + (number ? say(number, capture_number) : 0);
}
int cudaThreadExchangeStreamCaptureMode(int* mode) {
  return cuThreadExchangeStreamCaptureMode(mode);
}
int cudaGraphInstantiate(void** executable, ...) {
  return take_handle(executable);
}
int cudaGraphInstantiateWithFlags(void** executable, ...) {
  return take_handle(executable);
}
int cudaEventCreateWithFlags(void** event, unsigned) {
  need_context();
  return cuEventCreate(event, kWithoutTiming);
}
int cudaEventDestroy(void* event) {
  need_context();
  return cuEventDestroy_v2(event);
}
int cudaEventRecord(void* event, void* stream) {
  need_context();
  return cuEventRecord(event, stream);
}
int cudaEventRecordWithFlags(void* event, void* stream, unsigned) {
  return cudaEventRecord(event, stream);
}
int cudaEventQuery(void* event) {
  need_context();
  return cuEventQuery(event);
}
int cudaEventSynchronize(void* event) {
  need_context();
  return cuEventSynchronize(event);
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
int cudaGetDriverEntryPoint(const char* name, void** function, unsigned long long, int* result) {
  return say_function(name, function, result);
}
int cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long, int* result) {
  return say_function(name, function, result);
}
// NVML's: it lists nobody.
int nvmlDeviceGetComputeRunningProcesses(void*, unsigned* count, void*) {
  return say(count, 0u);
}
void** __cudaRegisterFatBinary(void*) {
  static void* handle[4];
  return handle;
}
}
