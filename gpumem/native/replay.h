// Replay: a recorded stream of events followed decision by decision through the allocator's policy.
//
// Owns: telling which recorded events are requests and which are the allocator's own doing, and comparing the latter
// with what the policy does. Must not know: files, columns' storage, Python.
//
// A request is an alloc (or an oom) with everything that the allocator did for it: the events between the last event
// and the alloc are its group. Frees are requests of one event. The policy runs each request; whatever it emits must
// be the next recorded event, to the byte. What the driver did (addresses, refusals) and when streams were done is
// read from the recording.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "policy.h"

namespace gpumem {

// One recorded event of one device; gm_kind, with free_requested + free_completed folded to free.
struct RecordedEvent {
  uint64_t position = 0;  // in the whole trace, over all devices
  uint64_t address = 0;
  uint64_t bytes = 0;   // requested bytes; segment events: the segment's or range's
  uint64_t stream = 0;  // raw handle
  PoolId pool;          // meaningful where the source says so
  uint8_t kind = 0;
  bool pool_known = false;
};

// What replay adds to an event.
struct EventDetail {
  uint64_t block_bytes = 0;
  uint64_t split_bytes = 0;
  uint16_t flags = 0;
};

class DetailSink {
 public:
  virtual ~DetailSink() = default;
  virtual void on_detail(uint64_t position, const EventDetail& detail) = 0;
};

// The first event at which policy and recording part.
struct Difference {
  bool found = false;
  uint64_t position = 0;   // of the recorded event; the trace's end when the recording has none left
  RecordedEvent expected;  // recorded; kind 0: nothing more
  PolicyEvent got;         // by the policy; kind 0: nothing
  std::string reason;
};

// What had to be assumed, as bits of ReplayResult::assumptions.
enum ReplayAssumption : uint32_t {
  kEmptyCacheInferred = 1,  // releases that no request explains were taken for empty_cache calls
  kPoolsInferred = 2,       // a request's pool was told by where it landed
  kPoolsInvented = 4,       // a segment fits no known pool: one freed before the end was assumed
  kGarbageFromTrace = 8,    // which segments were collected was read, not predicted
  kDriverRefused = 16,      // the driver refused memory below any known limit
  kSettingsChanged = 32,    // expandable segments were switched on or off during the run
  kSlackUnknown = 64,       // the slack of some old block never came to light
  kReleaseAmbiguous = 128   // without a known limit: an empty_cache, or a retry
};

struct ReplayOptions {
  Settings settings;
  Behaviour behaviour;
  uint64_t limit_bytes = kUnlimitedBytes;  // memory limit of the run
  bool limit_known = false;                // true with kUnlimitedBytes: there was none
  uint64_t capacity_bytes = 0;             // the card's; 0 not known
  bool truncated = false;                  // the history begins in mid-run
  bool check_each_event = false;           // hold the heap to its equations after each
};

struct ReplayResult {
  uint64_t decisions = 0;                            // recorded events that the policy reproduced
  uint64_t events = 0;                               // recorded events followed
  uint32_t assumptions = 0;                          // ReplayAssumption bits
  uint64_t reserved_bytes_accepted_max = 0;          // the memory limit is at least this …
  uint64_t reserved_bytes_refused_min = UINT64_MAX;  // … and less than this
  std::vector<uint64_t> empty_cache_positions;       // inferred calls: each before the event at this position
  Difference difference;
};

// Follows one device's events.
class TraceFollower : private Device, private EventSink {
 public:
  TraceFollower(const ReplayOptions& options, DetailSink* details);

  // Before the first event: a heap that existed, and private pools by their properties.
  void adopt(const SegmentDescription& segment, const std::vector<BlockDescription>& blocks);
  // `address` is a live block whose end may lie up to 1 MiB further on.
  void set_slack_unknown(uint64_t address) { slack_unknown_.insert(address); }
  void declare_pool(PoolId id, bool no_split);

  void append(const RecordedEvent& event) { events_.push_back(event); }
  // Follows what has been appended, as far as groups are complete; at the end of the trace, to the last event.
  void follow(bool at_end);
  // Every event before this position has been followed (or never will be, after a difference).
  uint64_t next_position() const;

  const ReplayResult& result() const { return result_; }
  const Policy& policy() const { return policy_; }

 private:
  struct Parted {};  // thrown at the first difference
  struct Group {
    size_t completed_end = 0;  // events_[next_ .. completed_end) are late free_completed
    size_t released_end = 0;   // events_[completed_end .. released_end) are segment_free and segment_unmap
    size_t last = 0;           // the alloc or oom, or the event that shows there is none
    bool has_request = false;
    bool is_complete = false;  // its last event has been appended
  };

  // replay.cpp
  void follow_one(bool at_end);
  void follow_free(const RecordedEvent& event);
  void follow_request(const Group& group);
  void follow_release(const Group& group);
  void follow_empty_cache(bool at_end);
  Group find_released(size_t first) const;
  Group find_group(bool at_end) const;
  const RecordedEvent* next_event() const { return next_ < events_.size() ? &events_[next_] : nullptr; }
  [[noreturn]] void part(const PolicyEvent& got, const std::string& reason);
  void expect(Outcome outcome, const char* what);
  void check_heap();
  void drop_followed();

  // replay_oracle.cpp: the recording as a device, and as the judge of what the policy emits
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
  void on_event(const PolicyEvent& event) override;
  DeviceStatus refuse(const PolicyEvent& asked);
  void accept(uint64_t bytes);
  bool take_completed(DeviceEvent* event);
  void require_place(const PolicyEvent& asked, uint64_t address, uint64_t bytes);

  // replay_inference.cpp: what was not recorded
  PoolId pool_of_request(const Group& group);
  PoolId pool_of_new_segment(const Group& group, const RecordedEvent& segment_event);
  bool is_explicit_release(const Group& group, const Policy::Attempt& attempt);
  void find_pools_by_order(const Group& group);
  PoolId invent_pool();
  bool was_release_forbidden(const Group& group) const;
  bool predicts_release(const std::vector<Block*>& victims, const Group& group) const;
  void release_as_recorded(const Group& group);
  void restore_cut_segment(const RecordedEvent& alloc, const Policy::Attempt& attempt);
  void free_released_pools(const Group& group);
  void follow_setting(const Group& group);
  void settle_slack(const RecordedEvent& alloc, const Policy::Attempt& attempt);
  bool move_border(Block* owner, uint64_t slack_bytes);
  Policy::Attempt plan(const RecordedEvent& request, const PoolId& pool);

  ReplayOptions options_;
  DetailSink* details_;
  Policy policy_;
  bool garbage_from_trace_ = false;  // ages or limit are not known: collected segments are read from the recording

  bool is_waiting_ = false;   // the next group's end has not been appended
  bool is_cut_ = false;       // no request yet: its group may have begun before the recording
  uint64_t cut_segment_ = 0;  // the first request's segment, made just before the recording began

  std::vector<RecordedEvent> events_;  // appended, not yet dropped
  size_t next_ = 0;                    // the event to follow now
  ReplayResult result_;

  std::unordered_map<uint64_t, uint64_t> event_of_address_;  // pending block -> its device event
  std::deque<uint64_t> pending_addresses_;                   // blocks whose events are about to be recorded
  uint64_t event_count_ = 0;
  const Policy::Attempt* attempt_ = nullptr;  // the request being served, while completions must not make it a hit
  std::set<uint64_t> slack_unknown_;          // live blocks, by address
  bool has_private_pools_ = false;
  PoolId last_pool_;  // of the request before
  uint64_t invented_pools_ = 0;
};

}  // namespace gpumem
