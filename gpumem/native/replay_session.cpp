// A trace's replay over all its devices; see the header.
#include "replay_session.h"

#include <algorithm>

namespace gpumem {

void ReplaySession::add_device(uint32_t device, const ReplayOptions& options) {
  DeviceEntry& entry = devices_[device];
  entry.options = options;
  DetailSink* details = this;  // a private base: only members may convert
  entry.follower = std::make_unique<TraceFollower>(options, details);
}

TraceFollower* ReplaySession::find_device(uint32_t device) const {
  auto found = devices_.find(device);
  return found == devices_.end() ? nullptr : found->second.follower.get();
}

const ReplayOptions* ReplaySession::find_options(uint32_t device) const {
  auto found = devices_.find(device);
  return found == devices_.end() ? nullptr : &found->second.options;
}

bool EventReader::read(const gm_replay_events& events, uint64_t row, uint64_t position, RecordedEvent* event) const {
  uint8_t kind = events.kind[row];
  bool is_followed = kind >= GM_ALLOC && kind <= GM_OOM && kind != GM_SEGMENT_REQUEST;
  if (!is_followed) return false;
  event->kind = kind;
  event->position = position;
  event->address = events.address[row];
  event->bytes = events.requested_bytes[row];
  uint16_t stream = events.stream[row];
  event->stream = stream < streams_.size() ? streams_[stream] : 0;
  uint16_t pool = events.pool[row];
  event->pool_known = pool != GM_POOL_UNKNOWN;
  event->pool = event->pool_known && pool < pools_.size() ? pools_[pool] : PoolId();
  if (event->pool_known) return true;
  auto told = segment_pools_.find(position);
  if (told == segment_pools_.end()) return true;
  event->pool = told->second;
  event->pool_known = true;
  return true;
}

std::vector<RecordedEvent> EventReader::select(const gm_replay_events& events, uint32_t device,
                                               uint64_t first_position) const {
  std::vector<RecordedEvent> selected;
  RecordedEvent event;
  for (uint64_t row = 0; row < events.count; ++row)
    if (events.device[row] == device && read(events, row, first_position + row, &event)) selected.push_back(event);
  return selected;
}

void ReplaySession::feed(const gm_replay_events& events) {
  details_.resize(details_.size() + events.count);
  uint32_t last_device = UINT32_MAX;
  TraceFollower* follower = nullptr;
  RecordedEvent event;
  for (uint64_t row = 0; row < events.count; ++row) {
    if (events.device[row] != last_device) {
      last_device = events.device[row];
      follower = find_device(last_device);
    }
    event = RecordedEvent();
    if (follower && reader_.read(events, row, fed_ + row, &event)) follower->append(event);
  }
  fed_ += events.count;
  for (auto& [device, entry] : devices_) entry.follower->follow(false);
}

void ReplaySession::finish() {
  for (auto& [device, entry] : devices_) entry.follower->follow(true);
}

void ReplaySession::settle(uint64_t position) {
  for (auto& [device, entry] : devices_)
    if (entry.follower->next_position() < position) entry.follower->follow(true);
}

uint64_t ReplaySession::ready_count() const {
  uint64_t next = fed_;
  for (const auto& [device, entry] : devices_) next = std::min(next, entry.follower->next_position());
  return next - taken_;
}

void ReplaySession::take(uint64_t count, uint64_t* block_bytes, uint64_t* split_bytes, uint16_t* flags) {
  for (uint64_t i = 0; i < count; ++i) {
    block_bytes[i] = details_[i].block_bytes;
    split_bytes[i] = details_[i].split_bytes;
    flags[i] = details_[i].flags;
  }
  details_.erase(details_.begin(), details_.begin() + static_cast<std::ptrdiff_t>(count));
  taken_ += count;
}

void ReplaySession::on_detail(uint64_t position, const EventDetail& detail) {
  details_[position - taken_] = detail;
}

}  // namespace gpumem
