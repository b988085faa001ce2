// The caching allocator's policy: which block a request gets, and when the driver is asked or given back to.
//
// Owns: the heap of one device and every decision about it, following PyTorch's to the byte. Must not know: which
// device is behind the seam, who listens to the events, threads (a caller holds one lock around each call).
//
// The heap, at every moment (check() holds it to this):
//   reserved = sum of mapped bytes of segments = allocated + pending + free
//   live_ = the kAllocated blocks by address; waiting_ + held_back_ = the kPending ones
//   a device call comes before the change it stands for, so a failed one leaves the heap as it was
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "device.h"
#include "policy_blocks.h"
#include "policy_settings.h"
#include "policy_statistics.h"

namespace gpumem {

enum class Outcome : int32_t {
  kOk = 0,
  kOutOfMemory = 1,  // after every attempt
  kTooLarge = 2,     // more than 1 EiB: refused outright
  kNotLive = 3,      // no live block begins at this address
  kPoolUnknown = 4,  // no private pool has this id
  kDeviceFailed = 5  // the driver reported an error; failed_call() names the call
};

// What happened, in the order it happened. `kind` and `flags` are gm_kind and gm_flag.
struct PolicyEvent {
  uint8_t kind = 0;
  uint16_t flags = 0;
  uint64_t address = 0;          // oom: free bytes
  uint64_t requested_bytes = 0;  // segment events: the segment's or range's bytes; oom: the rounded request
  uint64_t block_bytes = 0;      // oom: limit
  uint64_t split_bytes = 0;      // oom: total
  uint64_t stream = 0;
  PoolId pool;
};

class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual void on_event(const PolicyEvent& event) = 0;
};

struct Request {
  uint64_t bytes = 0;
  uint64_t stream = 0;
  uint64_t thread = 0;           // routes use_mem_pool
  const PoolId* pool = nullptr;  // not null: this pool whatever the routes say
  bool may_release_all = true;   // false: as while a graph is captured
};

struct Allocation {
  uint64_t address = 0;
  uint64_t block_bytes = 0;
  uint64_t split_bytes = 0;  // bytes left over and kept free
  uint16_t flags = 0;        // gm_flag
};

// One block and one segment as they look from outside.
struct BlockDescription {
  uint64_t address = 0;
  uint64_t bytes = 0;
  uint64_t requested_bytes = 0;
  BlockState state = BlockState::kFree;
};
struct SegmentDescription {
  uint64_t address = 0;
  uint64_t bytes = 0;
  uint64_t stream = 0;
  uint64_t page_bytes = 0;  // 0: ordinary
  PoolId pool;
  bool is_small = false;
};

class Policy {
 public:
  Policy(Device* device, const Settings& settings, const Behaviour& behaviour, EventSink* sink);
  ~Policy();
  Policy(const Policy&) = delete;
  Policy& operator=(const Policy&) = delete;

  [[gnu::hot]] Outcome allocate(const Request& request, Allocation* allocation);
  [[gnu::hot]] Outcome free(uint64_t address);
  Outcome record_stream(uint64_t address, uint64_t stream);
  Outcome empty_cache();

  // Looks which streams are done; allocate() does it by itself.
  Outcome finish_ready_frees();

  void set_settings(const Settings& settings) { settings_ = settings; }
  const Settings& settings() const { return settings_; }
  void set_limit(uint64_t limit_bytes) { limit_bytes_ = limit_bytes; }
  uint64_t limit_bytes() const { return limit_bytes_; }

  // Private pools. A pool exists from its first create to the release that finds it unused and empty.
  void create_pool(PoolId id, bool no_split, bool use_on_oom, bool own_allocator);
  Outcome release_pool(PoolId id);
  bool has_pool(PoolId id) const { return find_private_pool(id) != nullptr; }
  // While a route is in force, requests that it accepts go to its pool; the one begun last is asked first.
  Outcome begin_thread_route(PoolId id, uint64_t thread);
  Outcome begin_capture(PoolId id, uint64_t stream);
  Outcome end_route(PoolId id);

  // What allocate() would do, without doing it. Attempts are opaque to callers.
  struct Attempt {
    uint64_t requested_bytes = 0;
    uint64_t rounded_bytes = 0;
    uint64_t segment_bytes = 0;
    uint64_t stream = 0;
    BlockPool* pool = nullptr;
    Block* block = nullptr;    // the block found, once there is one
    BlockList::Cursor cursor;  // where it stands in its free list …
    bool is_listed = false;    // … from which it is taken when it is handed out
    bool may_release_all = true;
    uint16_t flags = 0;
  };
  [[gnu::hot]] Outcome plan(const Request& request, Attempt* attempt);
  [[gnu::hot]] Block* find_fit(const Attempt& attempt, BlockList::Cursor* place = nullptr) const;
  bool would_fit_after(const Attempt& attempt, const Block* completed) const;
  bool is_over_limit(const Attempt& attempt) const;
  std::vector<Block*> find_garbage() const;
  std::vector<Block*> find_oversize(const Attempt& attempt, bool* enough) const;

  // For a history that begins in mid-run, or was not recorded whole.
  void adopt(const SegmentDescription& segment, const std::vector<BlockDescription>& blocks);
  bool release_free_segment(uint64_t address);
  void move_to_pool(const Segment* segment, PoolId id);
  void set_pool_use_count(PoolId id, uint32_t use_count);
  void move_border(Block* live_block, uint64_t bytes);
  Block* find_live(uint64_t address) const { return live_.find(address); }
  const Block* find_waiting(DeviceEvent event) const;
  // Whether memory could be given at [address, address + bytes): no segment or mapped range is there.
  bool is_unused(uint64_t address, uint64_t bytes) const;
  const Segment* find_segment_at(uint64_t address) const;
  bool find_segment_from(uint64_t address) const { return segments_.count(address) > 0; }

  const Statistics& statistics() const { return statistics_; }
  const std::map<PoolId, PrivateReserve>& private_reserves() const { return private_reserves_; }
  void reset_peaks();
  IdleMeasure measure_idle() const;
  void visit(const std::function<void(const SegmentDescription&, const BlockDescription&)>& visitor) const;
  // False: `why` names the equation that does not hold. Walks the whole heap.
  bool check(std::string* why) const;
  const char* failed_call() const { return failed_call_; }

 private:
  struct DeviceError {};
  struct Route {
    PrivatePool* pool;
    bool is_capture;
    uint64_t stream_or_thread;
  };

  // policy.cpp: the order of attempts
  bool find_or_make_block(Attempt* attempt);
  bool retry_after_full_release(Attempt* attempt);
  [[gnu::hot]] void hand_out(Attempt* attempt, Allocation* allocation);
  Outcome refuse(const Attempt& attempt);
  void require(DeviceStatus status, const char* call);
  template <typename Body>
  Outcome guarded(Body body) {
    try {
      return body();
    } catch (const DeviceError&) {
      return Outcome::kDeviceFailed;
    }
  }

  // policy_search.cpp: best fit, split, merge
  bool take_fit(Attempt* attempt);
  bool take_from_pools_on_oom(Attempt* attempt);
  bool should_split(const Attempt& attempt) const;
  Block* split_front(const Attempt& attempt);
  void take_from_list(const Attempt& attempt);
  [[gnu::hot]] void count_inactive_split(const Block* block, bool added);
  void begin_net_split();
  void end_net_split(bool is_small);
  [[gnu::hot]] bool merge(Block* block, Block* neighbour);
  [[gnu::hot]] void insert_free(Block* block);
  void erase_free(Block* block);
  uint64_t reusable_bytes_below(uint64_t rounded_bytes) const;
  bool uses_expandable(const BlockPool& pool) const;

  // policy_segments.cpp: ordinary segments
  bool take_new_memory(Attempt* attempt);
  bool take_new_segment(Attempt* attempt);
  Segment* add_segment(const SegmentDescription& description, BlockPool* pool);
  Block* take_block(Segment* segment);
  // Applies `change` to the counters of reserved bytes that a pool's memory is in.
  template <typename Change>
  void change_reserved(const BlockPool& pool, Change change) {
    statistics_.change(pool.is_small, [&](PoolStatistics& counters) { change(counters.reserved_bytes); });
    if (!pool.owner) return;
    PrivateReserve& reserve = private_reserves_[pool.owner->id];
    change(reserve.all);
    change(pool.is_small ? reserve.small : reserve.large);
  }
  void remove_segment(Segment* segment);
  void adopt_block(Block* block);

  // policy_expandable.cpp
  bool take_expandable(Attempt* attempt);
  Block* find_room(const Attempt& attempt);
  Block* reserve(const Attempt& attempt);
  bool map_block(Block* block, uint64_t wanted_bytes);
  void unmap_block(Block* block);
  void release_reservation(Block* block);
  void insert_sliver(Block* block, uint64_t address, uint64_t bytes);

  // policy_release.cpp
  void collect_garbage(Attempt* attempt);
  bool release_oversize(const Attempt& attempt);
  void release_idle_memory();
  void release_pool_memory(BlockPool* pool);
  void release_segment(Block* block);

  // policy_frees.cpp: frees that wait for other streams
  [[gnu::hot]] void free_block(Block* block);
  [[gnu::hot]] void complete(Block* block, uint8_t kind);
  bool record_events(Block* block);
  void record_held_back_events();
  void finish_frees();
  void finish_all_frees();
  void finish_event(DeviceEvent event);

  // policy_pools.cpp
  BlockPool* pool_for(const Request& request, bool is_small);
  PrivatePool* find_private_pool(PoolId id) const;
  bool may_release_all() const;
  bool is_capturing() const;
  void drop_empty_pools();
  void for_each_pool(const std::function<void(const BlockPool&)>& visitor) const;

  void emit(const PolicyEvent& event);
  void emit_segment_event(uint8_t kind, uint64_t address, uint64_t bytes, const Segment& segment);

  Device* device_;
  Settings settings_;
  Behaviour behaviour_;
  EventSink* sink_;  // null: nobody listens
  uint64_t limit_bytes_ = kUnlimitedBytes;

  BlockPool small_;
  BlockPool large_;
  std::map<PoolId, std::unique_ptr<PrivatePool>> private_pools_;
  std::vector<Route> routes_;

  std::map<uint64_t, std::unique_ptr<Segment>> segments_;  // by address
  uint64_t last_number_ = 0;
  BlockStore store_;
  BlockMap live_;
  std::unordered_map<uint64_t, Block*> waiting_;                         // device event -> block that waits for it
  std::unordered_map<const Block*, std::vector<uint64_t>> stream_uses_;  // streams named by record_stream
  std::vector<Block*> held_back_;                                        // freed while a capture was underway

  // PyTorch counts what an operation changes of the inactive split blocks once, as a sum.
  struct NetSplit {
    bool is_open = false;
    int64_t bytes = 0;
    int64_t blocks = 0;
  };

  Statistics statistics_;
  std::map<PoolId, PrivateReserve> private_reserves_;  // since each pool's first memory
  NetSplit net_split_;
  const char* failed_call_ = "";
};

}  // namespace gpumem
