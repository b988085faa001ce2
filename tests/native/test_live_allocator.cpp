// The live allocator from several threads at once: on simulated devices and on a pretended driver, one device and two,
// recorded and not, with a driver that refuses at random, across a fork, and in PyTorch's place.
//
// Each thread allocates, hands blocks to other threads, frees blocks wherever they come from, names streams and
// empties the cache. In the end the heap must hold its equations and be empty, the driver have everything back, and the
// recording be a history that one heap can have had.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

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
#include "recording.h"

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

namespace {

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

Door door_of(const std::vector<gm_allocator*>& allocators) {
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

void* pointer(uint64_t value) {
  return reinterpret_cast<void*>(static_cast<uintptr_t>(value));
}

Door torch_door() {
  return Door{
      [](uint32_t device, uint64_t bytes, uint64_t stream) -> uint64_t {
        try {
          return reinterpret_cast<uintptr_t>(gm_torch_malloc(bytes, static_cast<int>(device), pointer(stream)));
        } catch (const std::exception&) {
          return 0;
        }
      },
      [](Held held) {
        gm_torch_free(pointer(held.address), 0, static_cast<int>(held.device), nullptr);
        return true;
      },
      [](Held held, uint64_t stream) { gm_torch_record_stream(pointer(held.address), pointer(stream)); },
      [](uint32_t) { gm_torch_empty_cache(); },
  };
}

uint64_t draw_bytes(std::mt19937_64& chance) {
  const uint64_t unit = uint64_t{1} << (4 + chance() % 20);
  return 1 + unit + chance() % unit;
}

void operate(const Door& door, Exchange& exchange, uint32_t device_count, uint64_t seed, int operations) {
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
void watch(const std::vector<gm_allocator*>& allocators, const std::atomic<bool>& is_over) {
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

void churn(const Door& door, const std::vector<gm_allocator*>& watched, uint32_t device_count, uint64_t seed) {
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

gm_allocator* make(uint32_t kind, uint32_t device, const char* settings, uint64_t memory_bytes) {
  const gm_allocator_options options = {settings, memory_bytes, GM_NO_LIMIT, kind, device, kNumber, 0};
  gm_allocator* made = nullptr;
  char error[256] = "";
  EXPECT_EQUAL(gm_allocator_create(&options, &made, error, sizeof error), GM_OK);
  EXPECT_EQUAL(error, "");
  return made;
}

void expect_empty(gm_allocator* allocator) {
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
void expect_history(const std::string& path, size_t device_count, int number) {
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

void test_simulated(const std::string& folder, const char* settings, uint32_t device_count) {
  const std::string path = folder + "/simulated.gpumem.journal";
  start_recording(path);
  std::vector<gm_allocator*> allocators;
  for (uint32_t device = 0; device < device_count; ++device)
    allocators.push_back(make(GM_DEVICE_SIMULATED, device, settings, 256 * kMiB));
  churn(door_of(allocators), allocators, device_count, 1 + device_count);
  for (gm_allocator* allocator : allocators) expect_empty(allocator);
  for (gm_allocator* allocator : allocators) gm_allocator_destroy(allocator);
  gm_recorder_stop("exit");
  expect_history(path, device_count, kNumber);
}

void test_driver(const std::string& folder, const char* settings, uint32_t device_count) {
  const std::string path = folder + "/driver.gpumem.journal";
  start_recording(path);
  pretend_card(256 * kMiB, static_cast<int>(device_count));
  pretend_current(static_cast<int>(device_count) - 1);  // the program's own choice
  std::vector<gm_allocator*> allocators;
  for (uint32_t device = 0; device < device_count; ++device)
    allocators.push_back(make(GM_DEVICE_CUDA, device, settings, 0));
  churn(door_of(allocators), allocators, device_count, 11 + device_count);
  for (gm_allocator* allocator : allocators) expect_empty(allocator);
  EXPECT_EQUAL(pretend_used_bytes(), 0);
  for (gm_allocator* allocator : allocators) gm_allocator_destroy(allocator);
  EXPECT_EQUAL(pretend_retained(), 0);
  EXPECT_EQUAL(pretend_depth(), 1);
  pretend_current(-1);
  gm_recorder_stop("exit");
  expect_history(path, device_count, kNumber);
}

// Every call may fail once in a while; none may leave the heap and the driver of different minds.
void test_failing_driver(const char* settings) {
  pretend_card(256 * kMiB, 1);
  gm_allocator* allocator = make(GM_DEVICE_CUDA, 0, settings, 0);
  std::atomic<bool> is_over{false};
  std::thread saboteur([&] {
    const char* calls[] = {"cuMemAlloc",    "cuMemFree",    "cuMemCreate",  "cuMemMap",        "cuMemSetAccess",
                           "cuEventRecord", "cuEventQuery", "cuMemGetInfo", "cuCtxPushCurrent"};
    for (size_t i = 0; !is_over.load(); ++i) {
      pretend_failure(calls[i % 9], i % 3 ? kFailed : 2);
      std::this_thread::yield();
    }
  });
  Exchange exchange;
  std::vector<std::thread> threads;
  const Door door = door_of({allocator});
  for (int i = 0; i < kThreads; ++i) threads.emplace_back([&, i] { operate(door, exchange, 1, 300 + i, kOperations); });
  for (std::thread& thread : threads) thread.join();
  is_over = true;
  saboteur.join();
  pretend_failure("", 0);
  Held held{0, 0};
  while (exchange.take(0, &held)) EXPECT(door.free(held));
  expect_empty(allocator);
  EXPECT_EQUAL(pretend_used_bytes(), 0);
  gm_allocator_destroy(allocator);
  EXPECT_EQUAL(pretend_retained(), 0);
}

void test_recordings_that_come_and_go(const std::string& folder) {
  std::vector<gm_allocator*> allocators = {make(GM_DEVICE_SIMULATED, 0, "", 256 * kMiB)};
  std::atomic<bool> is_over{false};
  std::thread recorder([&] {
    while (!is_over.load()) {
      start_recording(folder + "/comes_and_goes.gpumem.journal");
      std::this_thread::yield();
      gm_recorder_stop("exit");
    }
  });
  churn(door_of(allocators), allocators, 1, 21);
  is_over = true;
  recorder.join();
  expect_empty(allocators[0]);
  gm_allocator_destroy(allocators[0]);
}

// A graph captured on a stream of its own while other threads go on.
void capture(uint32_t device, unsigned long long number) {
  const TorchPool pool{0, number};
  gm_torch_begin_pool(static_cast<int>(device), pool, [](void* stream) { return stream == pointer(0x90); });
  std::vector<uint64_t> blocks;
  const Door door = torch_door();
  for (int i = 0; i < 20; ++i) blocks.push_back(door.alloc(device, 3000, 0x90));
  gm_torch_end_pool(static_cast<int>(device), pool);
  for (uint64_t block : blocks)
    if (block) door.free(Held{block, device});
  gm_torch_release_pool(static_cast<int>(device), pool);
}

// The devices' allocators are made by whichever thread comes first; they are never destroyed, so this comes last.
void test_in_pytorch_s_place(const std::string& folder) {
  const std::string path = folder + "/torch.gpumem.journal";
  start_recording(path);
  pretend_card(256 * kMiB, 2);
  EXPECT_EQUAL(gm_torch_prepare("garbage_collection_threshold:0.5,max_split_size_mb:20", 3, nullptr, 0), GM_OK);
  std::vector<std::thread> capturers;
  for (uint32_t device = 0; device < 2; ++device)
    capturers.emplace_back([device] {
      for (unsigned long long number = 1; number < 20; ++number) capture(device, number);
    });
  gm_torch_set_memory_fraction(0.9, 1);
  churn(torch_door(), {}, 2, 31);
  for (std::thread& capturer : capturers) capturer.join();
  expect_empty(gm_torch_allocator(0));
  expect_empty(gm_torch_allocator(1));
  EXPECT_EQUAL(pretend_used_bytes(), 0);
  gm_recorder_stop("exit");
  expect_history(path, 2, 3);
}

// Whether a forked child gets one answer, that the allocator is another process's, for everything it asks.
bool is_refused_all(gm_allocator* allocator) {
  uint64_t address = 0;
  gm_allocator_statistics statistics;
  gm_allocator_device device;
  char text[256] = "";
  const auto take = [](void*, const gm_heap_segments*, const gm_heap_blocks*, uint64_t) {};
  const gm_status statuses[] = {
      gm_allocator_alloc(allocator, 1, 0, &address),    gm_allocator_get_statistics(allocator, &statistics),
      gm_allocator_get_device(allocator, &device),      gm_allocator_check(allocator, text, sizeof text),
      gm_allocator_take_heap(allocator, take, nullptr), gm_allocator_reset_peaks(allocator),
      gm_allocator_reset_accumulated(allocator),        gm_allocator_hold_streams(allocator, 1),
  };
  for (const gm_status status : statuses)
    if (status != GM_POLICY_DEVICE_FAILED) return false;
  gm_allocator_get_failure(allocator, text, sizeof text);
  return std::string(text) ==
         "serving a process forked from the one that the allocator belongs to, which needs one of its own";
}

// A child forked while other threads hold the allocator's lock frees what it inherited, as destructors do, is told that
// there is nothing else, and ends.
void test_child_of_a_busy_program_can_free_and_end() {
  gm_allocator* allocator = make(GM_DEVICE_CUDA, 0, "", 0);
  const Door door = door_of({allocator});
  Exchange exchange;
  std::atomic<bool> is_over{false};
  uint64_t block = door.alloc(0, 5 * kMiB, 0);
  std::thread busy([&] {
    for (uint64_t seed = 400; !is_over.load(); ++seed) operate(door, exchange, 1, seed, 50);
  });
  for (int i = 0; i < 20; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(20);
      const bool is_freed = door.free(Held{block, 0}) && gm_allocator_empty_cache(allocator) == GM_OK;
      const bool is_refused = is_refused_all(allocator);
      gm_allocator_destroy(allocator);
      ::_exit(is_freed && is_refused ? 0 : 1);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_EQUAL(status, 0);
  }
  is_over = true;
  busy.join();
  Held held{0, 0};
  while (exchange.take(0, &held)) EXPECT(door.free(held));
  EXPECT(door.free(Held{block, 0}));
  expect_empty(allocator);
  gm_allocator_destroy(allocator);
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) return 2;
  const std::string folder = arguments[1];
  const char* all_settings[] = {"", "expandable_segments:True",
                                "garbage_collection_threshold:0.6,max_split_size_mb:20"};
  for (const char* settings : all_settings)
    for (uint32_t device_count : {1u, 2u}) {
      const std::string which = std::string(settings) + " on devices: " + std::to_string(device_count);
      run_case(("simulated " + which).c_str(), [&] { test_simulated(folder, settings, device_count); });
      run_case(("driver " + which).c_str(), [&] { test_driver(folder, settings, device_count); });
    }
  for (const char* settings : all_settings) run_case("a failing driver", [&] { test_failing_driver(settings); });
  run_case("recordings that come and go", [&] { test_recordings_that_come_and_go(folder); });
  if (kMayFork)
    run_case("a child of a busy program can free and end", [] { test_child_of_a_busy_program_can_free_and_end(); });
  run_case("in PyTorch's place", [&] { test_in_pytorch_s_place(folder); });
  return exit_code();
}
