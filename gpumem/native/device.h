// The device seam: everything the caching allocator's policy asks of a GPU, and nothing else.
//
// Owns: the ten questions and their manners. Must not know: pools, blocks, rounding, or which GPU is behind it.
//
// Manners: an address that was handed out stays valid until it is given back with the same bytes. A call that
// does not return kOk changed nothing. kNoMemory is an answer the policy can live with; kFailed is a driver
// error, which the policy hands to its caller with its heap unchanged.
//
#pragma once

#include <cstdint>

namespace gpumem {

enum class DeviceStatus : int32_t { kOk = 0, kNoMemory = 1, kFailed = 2 };

// A point in a stream's work; the device hands it back once all work before it is done.
struct DeviceEvent {
  uint64_t value;  // unique within a device
};

// What the driver says about the whole device.
struct DeviceMemory {
  uint64_t free_bytes;
  uint64_t total_bytes;
};

// What a range is wanted for; a device that follows a trace needs it, the driver does not.
struct RangeRequest {
  uint64_t bytes;       // bytes wanted
  uint64_t stream;      // raw stream handle of the pool it is for
  uint64_t page_bytes;  // expandable segments: the unit of mapping; 0 for an ordinary segment
};

class Device {
 public:
  virtual ~Device() = default;

  // An ordinary segment of request.bytes.
  virtual DeviceStatus alloc_segment(const RangeRequest& request, uint64_t* address) = 0;
  virtual DeviceStatus free_segment(uint64_t address, uint64_t bytes) = 0;

  // Address space without memory, then memory for whole pages of it.
  virtual DeviceStatus reserve(const RangeRequest& request, uint64_t* address) = 0;
  virtual DeviceStatus map(uint64_t address, uint64_t bytes) = 0;
  virtual DeviceStatus unmap(uint64_t address, uint64_t bytes) = 0;
  virtual DeviceStatus release_reservation(uint64_t address, uint64_t bytes) = 0;

  // Marks the present end of a stream's work.
  virtual DeviceStatus record_event(uint64_t stream, DeviceEvent* event) = 0;
  // One event that is over by now (each is reported once), or found = false. Never waits.
  virtual DeviceStatus poll_event(DeviceEvent* event, bool* found) = 0;
  // Waits for one outstanding event; the policy calls it once for each it still expects.
  virtual DeviceStatus wait_event(DeviceEvent* event) = 0;
  // Waits until all work of the stream is done.
  virtual DeviceStatus synchronise(uint64_t stream) = 0;

  virtual DeviceStatus memory(DeviceMemory* memory) = 0;
};

}  // namespace gpumem
