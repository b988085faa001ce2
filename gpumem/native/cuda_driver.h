// The CUDA driver, opened at run time: the functions we call, the few types they need, errors in the driver's words.
//
// Owns: names and signatures of libcuda.so.1's functions. Must not know: what memory is for. Nothing is linked and no
// CUDA header is used, so that one build serves machines with and without a driver.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace gpumem::cuda {

using Result = int;
using DeviceNumber = int;
using Address = unsigned long long;
using MemoryHandle = unsigned long long;
using Context = struct ContextTag*;
using Stream = struct StreamTag*;
using Event = struct EventTag*;

constexpr Result kSuccess = 0;
constexpr Result kOutOfMemory = 2;
constexpr Result kInvalidHandle = 400;
constexpr Result kNotReady = 600;
constexpr unsigned kEventWithoutTiming = 2;
constexpr int kCaptureRelaxed = 2;
constexpr int kAttributeVirtualMemory = 102;
constexpr int kAttributeRdmaWithVirtualMemory = 110;
constexpr int kLocationDevice = 1;
constexpr int kAllocationPinned = 1;
constexpr int kAccessReadWrite = 3;

struct Location {
  int type;  // kLocationDevice
  int id;    // device
};

// What cuMemCreate is asked for; laid out as the driver reads it.
struct AllocationProperties {
  int type;              // kAllocationPinned
  int handle_types;      // 0: not to be exported
  Location location;     // whose memory
  void* windows_handle;  // null
  uint8_t compression;   // 0
  uint8_t rdma_capable;  // 1: network cards may reach it
  uint16_t usage;        // 0
  uint8_t reserved[4];   // 0
};

struct AccessDescription {
  Location location;  // who may
  int flags;          // kAccessReadWrite
};

struct Uuid {
  uint8_t bytes[16];
};

struct Functions {
  Result (*init)(unsigned flags);
  Result (*get_error_name)(Result result, const char** name);
  Result (*get_error_text)(Result result, const char** text);
  Result (*get_device)(DeviceNumber* device, int ordinal);
  Result (*get_device_count)(int* count);
  Result (*get_device_name)(char* name, int capacity, DeviceNumber device);
  Result (*get_device_uuid)(Uuid* uuid, DeviceNumber device);
  Result (*get_device_bytes)(size_t* bytes, DeviceNumber device);
  Result (*get_device_attribute)(int* value, int attribute, DeviceNumber device);
  Result (*retain_primary_context)(Context* context, DeviceNumber device);
  Result (*release_primary_context)(DeviceNumber device);
  Result (*get_current_context)(Context* context);
  Result (*get_current_device)(DeviceNumber* device);
  Result (*push_context)(Context context);
  Result (*pop_context)(Context* context);
  Result (*exchange_capture_mode)(int* mode);
  Result (*alloc_memory)(Address* address, size_t bytes);
  Result (*free_memory)(Address address);
  Result (*get_memory_info)(size_t* free_bytes, size_t* total_bytes);
  Result (*reserve_address)(Address* address, size_t bytes, size_t alignment, Address wanted, unsigned long long flags);
  Result (*free_address)(Address address, size_t bytes);
  Result (*create_memory)(MemoryHandle* handle, size_t bytes, const AllocationProperties* properties,
                          unsigned long long flags);
  Result (*release_memory)(MemoryHandle handle);
  Result (*map_memory)(Address address, size_t bytes, size_t offset, MemoryHandle handle, unsigned long long flags);
  Result (*unmap_memory)(Address address, size_t bytes);
  Result (*set_access)(Address address, size_t bytes, const AccessDescription* descriptions, size_t count);
  Result (*create_event)(Event* event, unsigned flags);
  Result (*destroy_event)(Event event);
  Result (*record_event)(Event event, Stream stream);
  Result (*query_event)(Event event);
  Result (*wait_event)(Event event);
  Result (*wait_stream)(Stream stream);
  Result (*wait_context)();
};

// The opened and initialised driver; null with the reason when there is none. Opened once, kept for good.
const Functions* driver(std::string* why);

// "cuMemAlloc: CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access was encountered)".
std::string describe(const Functions& functions, const char* call, Result result);

}  // namespace gpumem::cuda
