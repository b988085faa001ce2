// Threads that allocate, hand blocks to one another, free them wherever they come from, name streams and empty the
// cache, through the C interface or as PyTorch does; and what has to hold meanwhile and in the end.
//
// Owns: the churn, and what is expected of a heap and of its recording. Must not know: which devices there are.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "expect.h"
#include "gpumem_allocator.h"
#include "journal_reading.h"

extern "C" {
void pretend_card(size_t card_bytes, int device_count);
size_t pretend_used_bytes();
int pretend_retained();
int pretend_depth();
void pretend_current(int device);
void pretend_finish(uint64_t stream);
void pretend_failure(const char* call, int result);
void pretend_capture(int is_captured);

void* gm_torch_malloc(size_t bytes, int device, void* stream);
void gm_torch_free(void* address, size_t bytes, int device, void* stream);
void gm_torch_record_stream(void* address, void* stream);
void gm_torch_empty_cache(void);
void gm_torch_set_memory_fraction(double fraction, int device);
using TorchPool = std::pair<unsigned long long, unsigned long long>;
void gm_torch_begin_pool(int device, TorchPool pool, std::function<bool(void*)> filter);
void gm_torch_end_pool(int device, TorchPool pool);
void gm_torch_release_pool(int device, TorchPool pool);
}

constexpr uint64_t kMiB = 1024 * 1024;
constexpr int kNumber = 7;  // of the allocators made here
constexpr int kThreads = 4;
constexpr int kFailed = 700;
#if defined(__SANITIZE_THREAD__)
constexpr int kOperations = 1000;
constexpr bool kMayFork = false;  // its runtime allows no more threads in the child
#else
constexpr int kOperations = 3000;
constexpr bool kMayFork = true;
#endif

struct Held {
  uint64_t address;
  uint32_t device;
};

// Blocks that any thread may take and free.
class Exchange {
 public:
  void put(Held held) {
    std::lock_guard<std::mutex> lock(mutex_);
    held_.push_back(held);
  }
  bool take(uint64_t draw, Held* held) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (held_.empty()) return false;
    std::swap(held_[draw % held_.size()], held_.back());
    *held = held_.back();
    held_.pop_back();
    return true;
  }

 private:
  std::mutex mutex_;
  std::vector<Held> held_;
};

// How a thread reaches a device's allocator: through the C interface, or as PyTorch does.
struct Door {
  std::function<uint64_t(uint32_t device, uint64_t bytes, uint64_t stream)> alloc;  // 0: refused
  std::function<bool(Held held)> free;
  std::function<void(Held held, uint64_t stream)> record_stream;
  std::function<void(uint32_t device)> empty_cache;
};

inline Door door_of(const std::vector<gm_allocator*>& allocators) {
  return Door{
      [=](uint32_t device, uint64_t bytes, uint64_t stream) {
        uint64_t address = 0;
        return gm_allocator_alloc(allocators[device], bytes, stream, &address) == GM_OK ? address : 0;
      },
      [=](Held held) { return gm_allocator_free(allocators[held.device], held.address) == GM_OK; },
      [=](Held held, uint64_t stream) { gm_allocator_record_stream(allocators[held.device], held.address, stream); },
      [=](uint32_t device) { gm_allocator_empty_cache(allocators[device]); },
  };
}

inline void* pointer(uint64_t value) {
  return reinterpret_cast<void*>(static_cast<uintptr_t>(value));
}

inline Door torch_door() {
  return Door{
      [](uint32_t device, uint64_t bytes, uint64_t stream) -> uint64_t {
        try {
          return reinterpret_cast<uintptr_t>(gm_torch_malloc(bytes, static_cast<int>(device), pointer(stream)));
        } catch (const std::exception&) {
          return 0;
        }
      },
      [](Held held) {
        // PyTorch 2.6 may name a device that had the address before.
        const int device = held.address % 1024 ? static_cast<int>(held.device) : 0;
        gm_torch_free(pointer(held.address), 0, device, nullptr);
        return true;
      },
      [](Held held, uint64_t stream) { gm_torch_record_stream(pointer(held.address), pointer(stream)); },
      [](uint32_t) { gm_torch_empty_cache(); },
  };
}

inline uint64_t draw_bytes(std::mt19937_64& chance) {
  const uint64_t unit = uint64_t{1} << (4 + chance() % 20);
  return 1 + unit + chance() % unit;
}

inline void operate(const Door& door, Exchange& exchange, uint32_t device_count, uint64_t seed, int operations) {
  std::mt19937_64 chance(seed);
  for (int i = 0; i < operations; ++i) {
    const auto device = static_cast<uint32_t>(chance() % device_count);
    const uint64_t draw = chance() % 100;
    Held held{0, 0};
    if (draw < 50) {
      held = Held{door.alloc(device, draw_bytes(chance), 0x10 * (chance() % 3)), device};
      if (held.address) exchange.put(held);
      if (!held.address) door.empty_cache(device);
    } else if (draw < 96) {
      if (!exchange.take(chance(), &held)) continue;
      if (draw < 70) door.record_stream(held, 0x10 * (chance() % 3));
      if (!door.free(held)) exchange.put(held);
    } else {
      pretend_finish(0x10 * (chance() % 3));
      if (draw == 99) door.empty_cache(device);
    }
  }
}

// What looks on meanwhile: statistics, checks, the heap.
inline void watch(const std::vector<gm_allocator*>& allocators, const std::atomic<bool>& is_over) {
  const auto count_blocks = [](void* context, const gm_heap_segments*, const gm_heap_blocks* blocks, uint64_t) {
    *static_cast<uint64_t*>(context) = blocks->count;
  };
  while (!is_over.load()) {
    for (gm_allocator* allocator : allocators) {
      gm_allocator_statistics found = {};
      gm_allocator_device device = {};
      uint64_t block_count = 0;
      char text[256];
      EXPECT_EQUAL(gm_allocator_get_statistics(allocator, &found), GM_OK);
      EXPECT_EQUAL(gm_allocator_get_device(allocator, &device), GM_OK);
      EXPECT_EQUAL(gm_allocator_check(allocator, text, sizeof text), GM_OK);
      EXPECT_EQUAL(gm_allocator_take_heap(allocator, count_blocks, &block_count), GM_OK);
      EXPECT(found.all.active_bytes.current <= found.all.reserved_bytes.current);
      EXPECT(found.all.allocated_bytes.peak >= found.all.allocated_bytes.current);
    }
    std::this_thread::yield();
  }
}

inline void churn(const Door& door, const std::vector<gm_allocator*>& watched, uint32_t device_count, uint64_t seed) {
  Exchange exchange;
  std::atomic<bool> is_over{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&, i] { operate(door, exchange, device_count, seed * 100 + i, kOperations); });
  std::thread watcher([&] { watch(watched, is_over); });
  for (std::thread& thread : threads) thread.join();
  is_over = true;
  watcher.join();
  pretend_failure("", 0);
  Held held{0, 0};
  while (exchange.take(0, &held)) EXPECT(door.free(held));
}

inline gm_allocator* make(uint32_t kind, uint32_t device, const char* settings, uint64_t memory_bytes) {
  const gm_allocator_options options = {settings, memory_bytes, GM_NO_LIMIT, kind, device, kNumber, 0};
  gm_allocator* made = nullptr;
  char error[256] = "";
  EXPECT_EQUAL(gm_allocator_create(&options, &made, error, sizeof error), GM_OK);
  EXPECT_EQUAL(error, "");
  return made;
}

inline void expect_empty(gm_allocator* allocator) {
  gm_allocator_statistics found = {};
  char text[256] = "";
  EXPECT_EQUAL(gm_allocator_empty_cache(allocator), GM_OK);
  EXPECT_EQUAL(gm_allocator_get_statistics(allocator, &found), GM_OK);
  EXPECT_EQUAL(found.all.active_bytes.current, 0);
  EXPECT_EQUAL(found.all.reserved_bytes.current, 0);
  EXPECT_EQUAL(found.all.allocation.added, found.all.allocation.removed);
  EXPECT_EQUAL(found.all.reserved_bytes.added, found.all.reserved_bytes.removed);
  gm_allocator_check(allocator, text, sizeof text);
  EXPECT_EQUAL(text, "");
}

// One heap a device can have had this history: nothing is handed out twice, nothing comes back that is not out.
inline void expect_history(const std::string& path, size_t device_count, int number) {
  const JournalContents contents = read_journal(path);
  std::map<uint8_t, std::set<uint64_t>> live;
  std::map<uint8_t, std::set<uint64_t>> pending;
  std::map<uint8_t, std::set<uint64_t>> segments;
  uint64_t wrong_count = 0;
  for (const auto& [event, record] : contents.records) {
    auto& here = live[record.device];
    auto& waiting = pending[record.device];
    if (record.kind == GM_ALLOC) wrong_count += !here.insert(record.address).second + waiting.count(record.address);
    if (record.kind == GM_FREE) wrong_count += !here.erase(record.address);
    if (record.kind == GM_FREE_REQUESTED)
      wrong_count += !here.erase(record.address) + !waiting.insert(record.address).second;
    if (record.kind == GM_FREE_COMPLETED) wrong_count += !waiting.erase(record.address);
    if (record.kind == GM_SEGMENT_ALLOC) wrong_count += !segments[record.device].insert(record.address).second;
    if (record.kind == GM_SEGMENT_FREE) wrong_count += !segments[record.device].erase(record.address);
    wrong_count += record.flags >> GM_ALLOCATOR_NUMBER_SHIFT != number || !(record.flags & GM_FLAG_OWN_ALLOCATOR);
  }
  EXPECT_EQUAL(wrong_count, 0);
  EXPECT_EQUAL(live.size(), device_count);
  for (const auto& [device, addresses] : live)
    EXPECT_EQUAL(addresses.size() + pending[device].size() + segments[device].size(), 0);
  EXPECT_EQUAL(contents.hole_count + contents.torn_count, 0);
  EXPECT(contents.records.size() > static_cast<size_t>(kThreads * kOperations / 2));
}
