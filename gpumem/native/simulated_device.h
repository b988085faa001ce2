// A pretend GPU: a byte budget, deterministic addresses, streams that finish when told, failures on request.
//
// Owns: its address space and its streams' events. Must not know: what the memory is for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>

#include "device.h"

namespace gpumem {

// Where new segments go. The driver mostly goes down from the top and fills the highest hole first; the others show
// what depends on it.
enum class AddressOrder : int32_t { kDescending = 0, kAscending = 1, kScattered = 2 };

class SimulatedDevice : public Device {
 public:
  explicit SimulatedDevice(uint64_t memory_bytes, AddressOrder order = AddressOrder::kDescending, uint64_t seed = 1);

  DeviceStatus alloc_segment(const RangeRequest& request, uint64_t* address) override;
  DeviceStatus free_segment(uint64_t address, uint64_t bytes) override;
  DeviceStatus reserve(const RangeRequest& request, uint64_t* address) override;
  DeviceStatus map(uint64_t address, uint64_t bytes) override;
  DeviceStatus unmap(uint64_t address, uint64_t bytes) override;
  DeviceStatus release_reservation(uint64_t address, uint64_t bytes) override;
  DeviceStatus record_event(uint64_t stream, DeviceEvent* event) override;
  DeviceStatus poll_event(DeviceEvent* event, bool* found) override;
  DeviceStatus wait_event(DeviceEvent* event) override;
  DeviceStatus synchronise(uint64_t stream) override;
  DeviceStatus memory(DeviceMemory* memory) override;

  // While held, recorded events wait for finish_stream or a wait; else every event is over at once.
  void hold_streams(bool held) { held_ = held; }
  void finish_stream(uint64_t stream);

  // The call_number-th device call from now on (1 is the next) returns `status` and changes nothing.
  void fail_call(uint64_t call_number, DeviceStatus status);
  uint64_t call_count() const { return call_count_; }

  uint64_t used_bytes() const { return used_bytes_; }
  uint64_t memory_bytes() const { return memory_bytes_; }

 private:
  struct StreamEvents {
    std::deque<uint64_t> values;
    size_t finished_count = 0;  // of them, from the front
  };

  bool fails(DeviceStatus* status);
  uint64_t place(uint64_t bytes);
  bool is_unused(uint64_t address, uint64_t bytes) const;
  uint64_t random();

  uint64_t memory_bytes_;
  AddressOrder order_;
  uint64_t random_state_;
  uint64_t used_bytes_ = 0;
  std::map<uint64_t, uint64_t> ranges_;  // address -> bytes of segments and reservations
  std::map<uint64_t, StreamEvents> streams_;
  bool held_ = false;
  uint64_t next_event_ = 1;
  uint64_t call_count_ = 0;
  uint64_t failing_call_ = 0;  // 0: none
  DeviceStatus failure_ = DeviceStatus::kFailed;
};

}  // namespace gpumem
