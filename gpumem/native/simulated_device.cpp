// A pretend GPU; see the header.
#include "simulated_device.h"

#include "check.h"

namespace gpumem {
namespace {

constexpr uint64_t kAlignment = 2 * 1024 * 1024;
constexpr uint64_t kSpaceBegin = uint64_t{1} << 33;
constexpr uint64_t kSpaceEnd = uint64_t{0x7f0000000000};

uint64_t round_up(uint64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

SimulatedDevice::SimulatedDevice(uint64_t memory_bytes, AddressOrder order, uint64_t seed)
    : memory_bytes_(memory_bytes), order_(order), random_state_(seed * 0x9E3779B97F4A7C15u | 1) {}

DeviceStatus SimulatedDevice::alloc_segment(const RangeRequest& request, uint64_t* address) {
  DeviceStatus status;
  if (fails(&status)) return status;
  if (request.bytes > memory_bytes_ - used_bytes_) return DeviceStatus::kNoMemory;
  *address = place(request.bytes);
  if (!*address) return DeviceStatus::kNoMemory;
  used_bytes_ += request.bytes;
  return DeviceStatus::kOk;
}

DeviceStatus SimulatedDevice::free_segment(uint64_t address, uint64_t bytes) {
  DeviceStatus status;
  if (fails(&status)) return status;
  auto range = ranges_.find(address);
  GM_CHECK(range != ranges_.end() && range->second == round_up(bytes));
  ranges_.erase(range);
  used_bytes_ -= bytes;
  return DeviceStatus::kOk;
}

DeviceStatus SimulatedDevice::reserve(const RangeRequest& request, uint64_t* address) {
  DeviceStatus status;
  if (fails(&status)) return status;
  *address = place(request.bytes);
  return *address ? DeviceStatus::kOk : DeviceStatus::kNoMemory;
}

DeviceStatus SimulatedDevice::map(uint64_t, uint64_t bytes) {
  DeviceStatus status;
  if (fails(&status)) return status;
  if (bytes > memory_bytes_ - used_bytes_) return DeviceStatus::kNoMemory;
  used_bytes_ += bytes;
  return DeviceStatus::kOk;
}

DeviceStatus SimulatedDevice::unmap(uint64_t, uint64_t bytes) {
  DeviceStatus status;
  if (fails(&status)) return status;
  GM_CHECK(bytes <= used_bytes_);
  used_bytes_ -= bytes;
  return DeviceStatus::kOk;
}

DeviceStatus SimulatedDevice::release_reservation(uint64_t address, uint64_t bytes) {
  DeviceStatus status;
  if (fails(&status)) return status;
  auto range = ranges_.find(address);
  GM_CHECK(range != ranges_.end() && range->second == round_up(bytes));
  ranges_.erase(range);
  return DeviceStatus::kOk;
}

DeviceStatus SimulatedDevice::record_event(uint64_t stream, DeviceEvent* event) {
  DeviceStatus status;
  if (fails(&status)) return status;
  event->value = next_event_++;
  StreamEvents& events = streams_[stream];
  events.values.push_back(event->value);
  if (!held_) events.finished_count = events.values.size();
  return DeviceStatus::kOk;
}

DeviceStatus SimulatedDevice::poll_event(DeviceEvent* event, bool* found) {
  DeviceStatus status;
  *found = false;
  if (fails(&status)) return status;
  for (auto& [stream, events] : streams_) {
    if (events.finished_count == 0) continue;
    event->value = events.values.front();
    events.values.pop_front();
    --events.finished_count;
    *found = true;
    if (events.values.empty()) streams_.erase(stream);
    break;
  }
  return DeviceStatus::kOk;
}

DeviceStatus SimulatedDevice::wait_event(DeviceEvent* event) {
  DeviceStatus status;
  if (fails(&status)) return status;
  for (auto& [stream, events] : streams_) {
    if (events.values.empty()) continue;
    event->value = events.values.front();
    events.values.pop_front();
    if (events.finished_count) --events.finished_count;
    if (events.values.empty()) streams_.erase(stream);
    return DeviceStatus::kOk;
  }
  return DeviceStatus::kFailed;
}

DeviceStatus SimulatedDevice::synchronise(uint64_t stream) {
  DeviceStatus status;
  if (fails(&status)) return status;
  finish_stream(stream);
  return DeviceStatus::kOk;
}

DeviceStatus SimulatedDevice::memory(DeviceMemory* memory) {
  DeviceStatus status;
  if (fails(&status)) return status;
  *memory = DeviceMemory{memory_bytes_ - used_bytes_, memory_bytes_};
  return DeviceStatus::kOk;
}

void SimulatedDevice::finish_stream(uint64_t stream) {
  auto found = streams_.find(stream);
  if (found != streams_.end()) found->second.finished_count = found->second.values.size();
}

void SimulatedDevice::fail_call(uint64_t call_number, DeviceStatus status) {
  failing_call_ = call_number ? call_count_ + call_number : 0;
  failure_ = status;
}

bool SimulatedDevice::fails(DeviceStatus* status) {
  if (++call_count_ != failing_call_) return false;
  *status = failure_;
  return true;
}

// An unused range; 0 when there is none.
uint64_t SimulatedDevice::place(uint64_t bytes) {
  bytes = round_up(bytes);
  uint64_t address = 0;
  if (order_ == AddressOrder::kScattered) {
    for (int tries = 0; tries < 1000 && !address; ++tries) {
      uint64_t candidate = kSpaceBegin + random() % ((kSpaceEnd - kSpaceBegin) / kAlignment) * kAlignment;
      if (is_unused(candidate, bytes)) address = candidate;
    }
  } else if (order_ == AddressOrder::kDescending) {
    uint64_t end = kSpaceEnd;
    for (auto range = ranges_.rbegin(); range != ranges_.rend(); ++range) {
      if (end - (range->first + range->second) >= bytes) break;
      end = range->first;
    }
    if (end - kSpaceBegin >= bytes) address = end - bytes;
  } else {
    uint64_t begin = kSpaceBegin;
    for (const auto& [start, length] : ranges_) {
      if (start - begin >= bytes) break;
      begin = start + length;
    }
    if (kSpaceEnd - begin >= bytes) address = begin;
  }
  if (address) ranges_[address] = bytes;
  return address;
}

bool SimulatedDevice::is_unused(uint64_t address, uint64_t bytes) const {
  if (address + bytes > kSpaceEnd) return false;
  auto after = ranges_.lower_bound(address);
  if (after != ranges_.end() && after->first < address + bytes) return false;
  return after == ranges_.begin() || std::prev(after)->first + std::prev(after)->second <= address;
}

uint64_t SimulatedDevice::random() {
  random_state_ ^= random_state_ << 13;
  random_state_ ^= random_state_ >> 7;
  random_state_ ^= random_state_ << 17;
  return random_state_;
}

}  // namespace gpumem
