// The recording as a device: it grants what it shows granted, refuses the rest, and judges what the policy emits.
#include "check.h"
#include "gpumem.h"
#include "replay.h"

namespace gpumem {
namespace {

PolicyEvent describe(uint8_t kind, uint64_t address, uint64_t bytes, uint64_t stream) {
  PolicyEvent event;
  event.kind = kind;
  event.address = address;
  event.requested_bytes = bytes;
  event.stream = stream;
  return event;
}

// An oom has no block: its bytes are the limit and the card's.
EventDetail detail_of(const PolicyEvent& event) {
  if (event.kind == GM_OOM) return EventDetail{0, 0, event.flags};
  return EventDetail{event.block_bytes, event.split_bytes, event.flags};
}

}  // namespace

DeviceStatus TraceFollower::alloc_segment(const RangeRequest& request, uint64_t* address) {
  if (cut_segment_) {
    *address = cut_segment_;
    return DeviceStatus::kOk;
  }
  const RecordedEvent* event = next_event();
  PolicyEvent asked = describe(GM_SEGMENT_ALLOC, 0, request.bytes, request.stream);
  if (!event || event->kind != GM_SEGMENT_ALLOC) return refuse(asked);
  if (event->bytes != request.bytes || event->stream != request.stream) part(asked, "another segment was asked for");
  require_place(asked, event->address, event->bytes);
  *address = event->address;
  accept(request.bytes);
  return DeviceStatus::kOk;
}

DeviceStatus TraceFollower::free_segment(uint64_t, uint64_t) {
  return DeviceStatus::kOk;
}

// The first map of a reservation is at its base. Without one the base is not known, and not needed yet.
DeviceStatus TraceFollower::reserve(const RangeRequest& request, uint64_t* address) {
  const RecordedEvent* event = next_event();
  if (!event || event->kind != GM_SEGMENT_MAP)
    return refuse(describe(GM_SEGMENT_MAP, 0, request.page_bytes, request.stream));
  if (policy_.find_segment_from(event->address))
    part(describe(GM_SEGMENT_MAP, 0, 0, request.stream), "a segment begins here");
  require_place(describe(GM_SEGMENT_MAP, 0, request.page_bytes, request.stream), event->address, request.page_bytes);
  *address = event->address;
  return DeviceStatus::kOk;
}

// A foreign file may claim anything; memory can only be where no memory is.
void TraceFollower::require_place(const PolicyEvent& asked, uint64_t address, uint64_t bytes) {
  constexpr uint64_t kAddressEnd = uint64_t{1} << 57;
  bool is_address = address != 0 && address % kBlockUnitBytes == 0 && address < kAddressEnd && bytes < kAddressEnd;
  if (!is_address || !policy_.is_unused(address, bytes)) part(asked, "the recorded segment cannot be there");
}

DeviceStatus TraceFollower::map(uint64_t address, uint64_t bytes) {
  const RecordedEvent* event = next_event();
  PolicyEvent asked = describe(GM_SEGMENT_MAP, address, bytes, event ? event->stream : 0);
  if (!event || event->kind != GM_SEGMENT_MAP) return refuse(asked);
  if (event->address != address || event->bytes != bytes) part(asked, "another range was to be mapped");
  require_place(asked, address, bytes);
  accept(bytes);
  return DeviceStatus::kOk;
}

DeviceStatus TraceFollower::unmap(uint64_t, uint64_t) {
  return DeviceStatus::kOk;
}
DeviceStatus TraceFollower::release_reservation(uint64_t, uint64_t) {
  return DeviceStatus::kOk;
}
DeviceStatus TraceFollower::synchronise(uint64_t) {
  return DeviceStatus::kOk;
}

DeviceStatus TraceFollower::memory(DeviceMemory* memory) {
  *memory = DeviceMemory{0, options_.capacity_bytes};
  return DeviceStatus::kOk;
}

// Memory that the recording does not show granted was refused: only a release or an oom can follow.
DeviceStatus TraceFollower::refuse(const PolicyEvent& asked) {
  const RecordedEvent* event = next_event();
  bool is_failure = event && (event->kind == GM_OOM || event->kind == GM_SEGMENT_FREE ||
                              event->kind == GM_SEGMENT_UNMAP || event->kind == GM_FREE_COMPLETED);
  if (!is_failure) part(asked, "the recording shows no such request to the driver");
  uint64_t wanted_bytes = policy_.statistics().all.reserved_bytes.now + asked.requested_bytes;
  if (wanted_bytes < result_.reserved_bytes_refused_min) result_.reserved_bytes_refused_min = wanted_bytes;
  if (options_.limit_known) result_.assumptions |= kDriverRefused;
  return DeviceStatus::kNoMemory;
}

void TraceFollower::accept(uint64_t bytes) {
  uint64_t reserved_bytes = policy_.statistics().all.reserved_bytes.now + bytes;
  if (reserved_bytes > result_.reserved_bytes_accepted_max) result_.reserved_bytes_accepted_max = reserved_bytes;
}

DeviceStatus TraceFollower::record_event(uint64_t, DeviceEvent* event) {
  event->value = ++event_count_;
  event_of_address_[pending_addresses_.front()] = event->value;
  pending_addresses_.pop_front();
  return DeviceStatus::kOk;
}

// A completion that would turn a recorded miss into a hit came later: while everything was released.
DeviceStatus TraceFollower::poll_event(DeviceEvent* event, bool* found) {
  *found = false;
  const RecordedEvent* recorded = next_event();
  if (!recorded || recorded->kind != GM_FREE_COMPLETED) return DeviceStatus::kOk;
  auto pending = event_of_address_.find(recorded->address);
  if (attempt_ && pending != event_of_address_.end()) {
    const Block* block = policy_.find_waiting(DeviceEvent{pending->second});
    if (block && policy_.would_fit_after(*attempt_, block)) return DeviceStatus::kOk;
  }
  *found = take_completed(event);
  return DeviceStatus::kOk;
}

DeviceStatus TraceFollower::wait_event(DeviceEvent* event) {
  const RecordedEvent* recorded = next_event();
  if (recorded && recorded->kind == GM_FREE_COMPLETED && take_completed(event)) return DeviceStatus::kOk;
  part(describe(GM_FREE_COMPLETED, 0, 0, 0), "a full release would have completed every pending free");
}

bool TraceFollower::take_completed(DeviceEvent* event) {
  auto pending = event_of_address_.find(next_event()->address);
  if (pending == event_of_address_.end()) return false;
  event->value = pending->second;
  event_of_address_.erase(pending);
  return true;
}

void TraceFollower::on_event(const PolicyEvent& event) {
  if (event.kind == GM_SEGMENT_REQUEST) return;
  if (cut_segment_ && event.kind != GM_ALLOC) return;
  cut_segment_ = 0;
  const RecordedEvent* recorded = next_event();
  if (!recorded) part(event, "the recording has no more events");
  if (recorded->kind != event.kind) part(event, "another event follows");
  if (recorded->bytes != event.requested_bytes) part(event, "the bytes differ");
  if (event.kind != GM_OOM && recorded->address != event.address) part(event, "the address differs");
  if (recorded->stream != event.stream) part(event, "the stream differs");
  if (details_) details_->on_detail(recorded->position, detail_of(event));
  ++result_.decisions;
  ++result_.events;
  ++next_;
}

}  // namespace gpumem
