// A trace's replay over all its devices: columns in, columns out.
//
// Owns: splitting events by device, and the order in which their details come back. Must not know: how a device's
// events are followed (replay.h).
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "gpumem_policy.h"
#include "replay.h"

namespace gpumem {

// Rows of event columns as recorded events: stream and pool rows become handles and ids.
class EventReader {
 public:
  void add_streams(const uint64_t* handles, uint64_t count) {
    streams_.insert(streams_.end(), handles, handles + count);
  }
  void add_pool(PoolId id) { pools_.push_back(id); }
  // What the source does not say of segment events' pools, by position.
  void set_segment_pools(std::map<uint64_t, PoolId> pools) { segment_pools_.merge(pools); }

  // False: an event that tells replay nothing.
  bool read(const gm_replay_events& events, uint64_t row, uint64_t position, RecordedEvent* event) const;
  // One device's events of a batch.
  std::vector<RecordedEvent> select(const gm_replay_events& events, uint32_t device, uint64_t first_position) const;

 private:
  std::vector<uint64_t> streams_;  // handle by row
  std::vector<PoolId> pools_;      // id by row
  std::map<uint64_t, PoolId> segment_pools_;
};

class ReplaySession : private DetailSink {
 public:
  EventReader& reader() { return reader_; }
  void add_device(uint32_t device, const ReplayOptions& options);
  TraceFollower* find_device(uint32_t device) const;
  const ReplayOptions* find_options(uint32_t device) const;

  void feed(const gm_replay_events& events);
  void finish();
  void settle(uint64_t position);
  uint64_t ready_count() const;
  void take(uint64_t count, uint64_t* block_bytes, uint64_t* split_bytes, uint16_t* flags);

 private:
  struct DeviceEntry {
    ReplayOptions options;
    std::unique_ptr<TraceFollower> follower;
  };
  void on_detail(uint64_t position, const EventDetail& detail) override;

  std::map<uint32_t, DeviceEntry> devices_;
  EventReader reader_;
  std::vector<EventDetail> details_;  // of positions taken_ …
  uint64_t taken_ = 0;
  uint64_t fed_ = 0;  // positions appended so far
};

}  // namespace gpumem
