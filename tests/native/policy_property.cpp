// Random programs against the allocator's policy on the simulated device.
//
// Aim: after every operation the heap's equations hold, the program's own book agrees with the statistics, and the
// device has lent exactly what is reserved; a device call that fails at any place leaves all of it true.
// Method: seeded random operations over streams, pools, settings and limits; a book of live blocks beside the policy.
//
// policy_property [operations per setting] [check every] [first seed] [seeds]
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "gpumem_policy.h"
#include "policy.h"
#include "simulated_device.h"

namespace {

using gpumem::kMiB;

const char* const kSettings[] = {
    "",
    "expandable_segments:True",
    "max_split_size_mb:32",
    "expandable_segments:True,max_split_size_mb:48",
    "roundup_power2_divisions:8",
    "roundup_power2_divisions:[1:2,4:8,>:4]",
    "garbage_collection_threshold:0.5",
    "garbage_collection_threshold:0.7,max_split_size_mb:64,max_non_split_rounding_mb:40",
    "throw_on_cudamalloc_oom:True",
};

[[noreturn]] void fail(const std::string& text) {
  std::fprintf(stderr, "policy_property: %s\n", text.c_str());
  std::exit(1);
}

void require(bool holds, const char* text, uint64_t operation) {
  if (!holds) fail("operation " + std::to_string(operation) + ": " + text);
}

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 1) {}
  uint64_t next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_;
  }
  uint64_t below(uint64_t bound) { return next() % bound; }
  // Log-uniform, so that every size class comes up.
  uint64_t request_bytes() {
    uint64_t bytes = uint64_t{1} << below(27);
    return bytes + below(bytes);
  }

 private:
  uint64_t state_;
};

// What the events alone say the heap holds; must come to what the statistics say.
class EventBook : public gpumem::EventSink {
 public:
  void on_event(const gpumem::PolicyEvent& event) override {
    switch (event.kind) {
      case GM_ALLOC:
        allocated_bytes += event.block_bytes;
        active_bytes += event.block_bytes;
        break;
      case GM_FREE:
        allocated_bytes -= event.block_bytes;
        active_bytes -= event.block_bytes;
        break;
      case GM_FREE_REQUESTED:
        allocated_bytes -= event.block_bytes;
        break;
      case GM_FREE_COMPLETED:
        active_bytes -= event.block_bytes;
        break;
      case GM_SEGMENT_ALLOC:
      case GM_SEGMENT_MAP:
        reserved_bytes += event.requested_bytes;
        break;
      case GM_SEGMENT_FREE:
      case GM_SEGMENT_UNMAP:
        reserved_bytes -= event.requested_bytes;
        break;
      default:
        break;
    }
  }
  uint64_t allocated_bytes = 0;
  uint64_t active_bytes = 0;
  uint64_t reserved_bytes = 0;
};

struct LiveBlock {
  uint64_t address;
  uint64_t block_bytes;
};

class Program {
 public:
  Program(uint64_t seed, const gpumem::Settings& settings, bool with_failures)
      : random_(seed),
        device_(1024 * kMiB, static_cast<gpumem::AddressOrder>(seed % 3), seed),
        policy_(&device_, settings, behaviour(seed), &events_),
        with_failures_(with_failures) {
    device_.hold_streams(true);
    if (seed % 2 == 0) policy_.set_limit(512 * kMiB);
    policy_.create_pool(kPools[0], false, false, false);
    policy_.create_pool(kPools[1], seed % 3 == 0, seed % 5 == 0, false);
  }

  void run(uint64_t operations, uint64_t check_every) {
    for (operation_ = 0; operation_ < operations; ++operation_) {
      if (with_failures_ && random_.below(50) == 0)
        device_.fail_call(1 + random_.below(5),
                          random_.below(2) ? gpumem::DeviceStatus::kNoMemory : gpumem::DeviceStatus::kFailed);
      step();
      if (operation_ % check_every == 0) check();
    }
    finish();
  }

  const gpumem::Statistics& statistics() const { return policy_.statistics(); }

 private:
  static constexpr gpumem::PoolId kPools[2] = {{1, 0}, {0, 1}};

  static gpumem::Behaviour behaviour(uint64_t seed) {
    gpumem::Behaviour behaviour;
    behaviour.search_after_retry_wait = seed % 4 == 1;
    behaviour.routed_pool_blocks_release = seed % 4 != 2;
    behaviour.large_segment_setting_counts = seed % 4 == 3;
    behaviour.elder_first = static_cast<gpumem::ElderFirst>(seed % 3);
    return behaviour;
  }

  void step() {
    uint64_t dice = random_.below(1000);
    // Between 40 and 400 live blocks: enough for neighbours, few enough to run out now and then.
    bool grows = live_.size() < 40 || (live_.size() < 400 && dice < 480);
    if (dice >= 960) return rare(dice - 960);
    if (grows)
      alloc();
    else
      free_one();
  }

  void rare(uint64_t dice) {
    if (dice < 16 && !live_.empty()) {
      require(
          policy_.record_stream(live_[random_.below(live_.size())].address, random_.below(4)) == gpumem::Outcome::kOk,
          "record_stream of a live block is refused", operation_);
    } else if (dice < 26) {
      device_.finish_stream(random_.below(4));
    } else if (dice < 28) {
      policy_.empty_cache();
    } else if (dice < 34) {
      toggle_route();
    } else if (dice < 36) {
      require(policy_.free(0x1234) == gpumem::Outcome::kNotLive, "a free of nothing is accepted", operation_);
    } else if (dice < 37) {
      gpumem::Settings settings = policy_.settings();
      settings.expandable_segments = !settings.expandable_segments;
      policy_.set_settings(settings);
    }
  }

  void toggle_route() {
    if (routes_ > 0) {
      --routes_;
      policy_.end_route(kPools[routes_]);
      return;
    }
    policy_.begin_capture(kPools[0], 3);
    policy_.begin_thread_route(kPools[1], 1);
    routes_ = 2;
  }

  void alloc() {
    gpumem::Request request;
    request.bytes = random_.request_bytes();
    request.stream = random_.below(4);
    request.thread = random_.below(2);
    gpumem::Allocation allocation;
    gpumem::Outcome outcome = policy_.allocate(request, &allocation);
    if (outcome == gpumem::Outcome::kOk) {
      require(allocation.block_bytes >= request.bytes, "a block is smaller than its request", operation_);
      live_.push_back(LiveBlock{allocation.address, allocation.block_bytes});
      live_bytes_ += allocation.block_bytes;
    } else if (outcome == gpumem::Outcome::kDeviceFailed) {
      require(policy_.failed_call()[0] != 0, "the failed call has no name", operation_);
    } else {
      require(outcome == gpumem::Outcome::kOutOfMemory, "an alloc fails for another reason", operation_);
    }
  }

  void free_one() {
    if (live_.empty()) return;
    size_t i = random_.below(live_.size());
    LiveBlock block = live_[i];
    gpumem::Outcome outcome = policy_.free(block.address);
    if (outcome == gpumem::Outcome::kDeviceFailed) return;  // still live
    require(outcome == gpumem::Outcome::kOk, "a live block cannot be freed", operation_);
    live_[i] = live_.back();
    live_.pop_back();
    live_bytes_ -= block.block_bytes;
  }

  void check() {
    std::string why;
    if (!policy_.check(&why)) fail("operation " + std::to_string(operation_) + ": " + why);
    const gpumem::PoolStatistics& all = policy_.statistics().all;
    require(all.allocated_bytes.now == live_bytes_, "allocated is not what the program holds", operation_);
    require(all.reserved_bytes.now == device_.used_bytes(), "reserved is not what the device lent", operation_);
    require(all.allocated_bytes.now == events_.allocated_bytes, "the events' allocated differs", operation_);
    require(all.active_bytes.now == events_.active_bytes, "the events' active differs", operation_);
    require(all.reserved_bytes.now == events_.reserved_bytes, "the events' reserved differs", operation_);
    if (policy_.limit_bytes() != gpumem::kUnlimitedBytes && !policy_.settings().expandable_segments)
      require(all.reserved_bytes.now <= policy_.limit_bytes() + 20 * kMiB, "the limit is broken", operation_);
    gpumem::IdleMeasure idle = policy_.measure_idle();
    require(idle.releasable_bytes + idle.gap_bytes == all.reserved_bytes.now - all.active_bytes.now,
            "idle is not releasable + gaps", operation_);
  }

  // Everything freed, everything released: nothing may be left.
  void finish() {
    device_.fail_call(0, gpumem::DeviceStatus::kOk);
    while (routes_ > 0) policy_.end_route(kPools[--routes_]);
    while (!live_.empty()) free_one();
    policy_.release_pool(kPools[0]);
    policy_.release_pool(kPools[1]);
    require(policy_.empty_cache() == gpumem::Outcome::kOk, "the last empty_cache fails", operation_);
    check();
    require(device_.used_bytes() == 0, "memory is left after everything was freed and released", operation_);
  }

  Random random_;
  gpumem::SimulatedDevice device_;
  EventBook events_;
  gpumem::Policy policy_;
  bool with_failures_;
  std::vector<LiveBlock> live_;
  uint64_t live_bytes_ = 0;
  size_t routes_ = 0;
  uint64_t operation_ = 0;
};

// That the programs go everywhere is part of the test: each of these must have happened.
struct Coverage {
  uint64_t cache_hits = 0, splits = 0, alloc_retries = 0, ooms = 0, device_allocs = 0, device_frees = 0;

  void add(const gpumem::Statistics& statistics) {
    cache_hits += statistics.cache_hits;
    splits += statistics.splits;
    alloc_retries += statistics.alloc_retries;
    ooms += statistics.ooms;
    device_allocs += statistics.device_allocs;
    device_frees += statistics.device_frees;
  }
  void require_all() const {
    require(cache_hits && splits && alloc_retries && ooms && device_allocs && device_frees, "something never came up",
            0);
  }
};

constexpr gpumem::PoolId Program::kPools[2];

// One short program, once for each device call it makes, with that call failing.
void fail_each_call(const gpumem::Settings& settings, gpumem::DeviceStatus status) {
  uint64_t call_count = 0;
  for (uint64_t failing = 1; failing == 1 || failing <= call_count; ++failing) {
    gpumem::SimulatedDevice device(256 * kMiB);
    gpumem::Policy policy(&device, settings, gpumem::Behaviour(), nullptr);
    policy.set_limit(200 * kMiB);
    if (failing <= call_count || failing == 1) device.fail_call(failing, status);
    std::vector<uint64_t> live;
    uint64_t failures = 0;
    auto note = [&](gpumem::Outcome outcome) {
      if (outcome == gpumem::Outcome::kDeviceFailed) ++failures;
      std::string why;
      if (!policy.check(&why)) fail("device call " + std::to_string(failing) + " failing: " + why);
      require(policy.statistics().all.reserved_bytes.now == device.used_bytes(), "reserved is not lent", failing);
      return outcome == gpumem::Outcome::kOk;
    };
    for (uint64_t i = 0; i < 60; ++i) {
      gpumem::Request request;
      request.bytes = (i % 7 + 1) * 3 * kMiB + i * 1000;
      request.stream = i % 2;
      gpumem::Allocation allocation;
      if (note(policy.allocate(request, &allocation))) live.push_back(allocation.address);
      if (i % 3 == 0 && !live.empty()) note(policy.record_stream(live.back(), 7));
      if (i % 2 == 1 && !live.empty() && note(policy.free(live.front()))) live.erase(live.begin());
      if (i % 20 == 19) note(policy.empty_cache());
    }
    while (!live.empty()) {
      if (note(policy.free(live.back()))) live.pop_back();
    }
    while (!note(policy.empty_cache())) {
    }
    require(device.used_bytes() == 0, "memory is left behind", failing);
    if (status == gpumem::DeviceStatus::kFailed && failing > 1)
      require(failures <= 1, "one failing call is reported more than once", failing);
    if (failing == 1) call_count = device.call_count();
  }
}

void share_between_threads() {
  gm_policy_options options = {"max_split_size_mb:64", 2048 * kMiB, GM_NO_LIMIT, 1, 0, GM_ADDRESS_DESCENDING};
  gm_policy* policy = nullptr;
  char error[256] = "";
  if (gm_policy_create(&options, nullptr, nullptr, &policy, error, sizeof(error)) != GM_OK) fail(error);
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < 4; ++thread)
    threads.emplace_back([policy, thread] {
      Random random(thread + 1);
      std::vector<uint64_t> live;
      for (int i = 0; i < 5000; ++i) {
        gm_policy_allocation allocation;
        if (live.size() < 50 &&
            gm_policy_alloc(policy, random.request_bytes() / 16 + 1, thread % 2, thread, &allocation) == GM_OK) {
          live.push_back(allocation.address);
        } else if (!live.empty()) {
          size_t victim = random.below(live.size());
          gm_policy_record_stream(policy, live[victim], random.below(3));
          if (gm_policy_free(policy, live[victim]) != GM_OK) fail("a thread's block cannot be freed");
          live.erase(live.begin() + static_cast<std::ptrdiff_t>(victim));
        }
      }
      for (uint64_t address : live) gm_policy_free(policy, address);
    });
  for (std::thread& thread : threads) thread.join();
  gm_policy_empty_cache(policy);
  gm_policy_statistics statistics;
  gm_policy_get_statistics(policy, &statistics);
  if (gm_policy_check(policy, error, sizeof(error)) != GM_OK) fail(error);
  require(statistics.reserved_bytes == 0 && statistics.allocated_bytes == 0, "threads left memory behind", 0);
  gm_policy_destroy(policy);
}

uint64_t argument(int count, char** values, int index, uint64_t otherwise) {
  return count > index ? std::strtoull(values[index], nullptr, 10) : otherwise;
}

}  // namespace

int main(int argc, char** argv) {
  uint64_t operations = argument(argc, argv, 1, 3000);
  uint64_t check_every = argument(argc, argv, 2, 1);
  uint64_t first_seed = argument(argc, argv, 3, 1);
  uint64_t seeds = argument(argc, argv, 4, 4);
  uint64_t run_count = 0;
  Coverage coverage;
  for (const char* text : kSettings) {
    gpumem::Settings settings;
    std::string error;
    if (!gpumem::parse_settings(text, &settings, &error)) fail(error);
    for (uint64_t seed = first_seed; seed < first_seed + seeds; ++seed) {
      Program program(seed, settings, seed % 2 == 1);
      program.run(operations, check_every);
      coverage.add(program.statistics());
      ++run_count;
    }
    fail_each_call(settings, gpumem::DeviceStatus::kFailed);
    fail_each_call(settings, gpumem::DeviceStatus::kNoMemory);
  }
  share_between_threads();
  coverage.require_all();
  std::printf("policy_property: %" PRIu64 " operations, every equation held; %" PRIu64 " hits, %" PRIu64
              " splits, %" PRIu64 " retries, %" PRIu64 " out of memory, %" PRIu64 " device allocs, %" PRIu64 " frees\n",
              run_count * operations, coverage.cache_hits, coverage.splits, coverage.alloc_retries, coverage.ooms,
              coverage.device_allocs, coverage.device_frees);
  return 0;
}
