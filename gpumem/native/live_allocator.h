// The allocator that serves programs: policy on a device, every event to the recorder, one lock.
//
// Owns: the lock of a device, what is recorded beside the policy's own events, captures under way. Must not know:
// Python, PyTorch's types, statuses of the C interface.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda_device.h"
#include "policy.h"
#include "simulated_device.h"

namespace gpumem {

struct LiveOptions {
  Settings settings;
  Behaviour behaviour;
  uint64_t limit_bytes = kUnlimitedBytes;
  uint8_t device = 0;  // the program's ordinal
  uint8_t number = 0;  // told with every event, as the device is
};

// What PyTorch counts beside the policy's own statistics.
struct LiveCounts {
  Counter oversize_blocks;          // blocks held of at least max_split_size
  Counter oversize_segments;        // segments of at least max_split_size
  uint64_t full_release_count = 0;  // empty_cache and last resorts: every stream was waited for
};

struct LiveStatistics {
  Statistics policy;
  LiveCounts counts;
};

// Counts now, and as they were when accumulated counts were last reset.
struct LiveFigures {
  LiveStatistics now;
  LiveStatistics base;
  IdleMeasure idle;
  uint64_t max_split_bytes;
};

using PrivateReserves = std::map<PoolId, PrivateReserve>;

// What a refused request met, for the sentence that says so.
struct Refusal {
  uint64_t segment_bytes = 0;  // what the driver was asked for
  uint64_t free_bytes = 0;
  uint64_t memory_bytes = 0;
  uint64_t limit_bytes = kUnlimitedBytes;
  uint64_t allocated_bytes = 0;
  uint64_t reserved_bytes = 0;
  uint64_t private_idle_bytes = 0;  // of what is reserved and not allocated: idle in private pools
};

// Thrown where an allocator is asked for figures that it does not have any more; describe_failure() says why.
struct NotServing : std::runtime_error {
  NotServing() : std::runtime_error("gpumem's allocator serves nothing any more") {}
};

class LiveAllocator : private EventSink {
 public:
  LiveAllocator(std::unique_ptr<CudaDevice> device, const LiveOptions& options);
  LiveAllocator(std::unique_ptr<SimulatedDevice> device, const LiveOptions& options);
  ~LiveAllocator() override;

  [[gnu::hot]] Outcome allocate(uint64_t bytes, uint64_t stream, Allocation* allocation);
  // `otherwise` is what one that serves no more says of any block, its own or not.
  [[gnu::hot]] Outcome free(uint64_t address, Outcome otherwise = Outcome::kOk);
  Outcome record_stream(uint64_t address, uint64_t stream, Outcome otherwise = Outcome::kOk);
  Outcome empty_cache();

  // A graph being captured: requests of streams that `accepts` go to its pool from now on.
  void begin_pool(PoolId pool, std::function<bool(uint64_t stream)> accepts);
  void end_pool(PoolId pool);
  void release_pool(PoolId pool);

  // The policy and the device, with the lock held. These and what follows throw NotServing.
  template <typename Body>
  auto with_policy(Body body) {
    const std::unique_lock<std::mutex> lock = enter();
    return body(policy_);
  }
  template <typename Body>
  auto with_simulated(Body body) {
    const std::unique_lock<std::mutex> lock = enter();
    return body(simulated_);
  }

  // Lets another GPU at its memory, by the program's ordinal; `why` where the driver refuses.
  Outcome let_in(int ordinal, std::string* why);

  // Gives everything back to the driver, live blocks too.
  void close();

  // True in a process forked from the one that made it: CUDA does not live on there, and the lock may be held for good.
  // Such an allocator takes blocks back without a word and serves nothing, figures neither; it must not be destroyed.
  bool is_inherited() const;

  LiveFigures take_figures();
  // Of each private pool so far; `base` as it was when accumulated counts were last reset.
  void take_private_reserves(PrivateReserves* now, PrivateReserves* base);
  void reset_peaks();
  void reset_accumulated();

  Refusal describe_refusal(uint64_t bytes);
  std::string describe_failure();
  DeviceMemory memory();
  // Of a cached free block or of the driver: the most that one more request could get without a release.
  uint64_t find_largest_free(uint64_t driver_free_bytes);

  uint8_t device() const { return ordinal_; }
  std::string device_name() const { return cuda_ ? cuda_->name() : "simulated device"; }
  std::string device_uuid() const { return cuda_ ? cuda_->uuid() : ""; }
  uint64_t memory_bytes() const { return cuda_ ? cuda_->memory_bytes() : simulated_->memory_bytes(); }

 private:
  struct Capture {
    PoolId pool;
    std::function<bool(uint64_t)> accepts;
  };

  std::unique_lock<std::mutex> enter();
  template <typename Change>
  Outcome change(Outcome otherwise, Change make);

  [[gnu::hot]] void on_event(const PolicyEvent& event) override;
  void count(const PolicyEvent& event);
  Outcome release_idle();
  LiveStatistics counted() const { return {policy_.statistics(), counts_}; }
  const PoolId* find_captured_pool(uint64_t stream) const;

  std::mutex mutex_;
  bool is_broken_ = false;  // a change of the heap was left half made: the process had no memory for the rest
  std::unique_ptr<Device> device_;
  CudaDevice* cuda_ = nullptr;            // device_, if it is one
  SimulatedDevice* simulated_ = nullptr;  // device_, if it is one
  uint8_t ordinal_;
  uint16_t own_flags_;   // of all its events: that they are ours, and the allocator's number
  uint32_t lane_;        // of its events in a recording
  uint32_t generation_;  // of the process it was made in
  Policy policy_;
  LiveCounts counts_;
  LiveStatistics base_;
  PrivateReserves private_base_;
  std::vector<Capture> captures_;  // the one begun last is asked first
};

}  // namespace gpumem
