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
#include <string>
#include <thread>
#include <vector>

#include "allocator_churn.h"
#include "expect.h"
#include "gpumem_allocator.h"
#include "recording.h"

namespace {

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

// The reserved bytes of a pool that capture() made: one small segment, which is back if it `is_gone`.
void expect_private_pool(uint32_t device, unsigned long long number, bool is_gone) {
  gm_allocator* allocator = gm_torch_allocator(device);
  uint64_t count = 0;
  EXPECT_EQUAL(gm_allocator_get_private_pools(allocator, nullptr, 0, &count), GM_OK);
  std::vector<gm_private_pool> pools(count);
  EXPECT_EQUAL(gm_allocator_get_private_pools(allocator, pools.data(), count, &count), GM_OK);
  bool is_found = false;
  for (const gm_private_pool& pool : pools) {
    EXPECT_EQUAL(pool.all.current, pool.all.added - pool.all.removed);
    EXPECT_EQUAL(pool.large_pool.peak, 0u);
    if (pool.pool_first != 0 || pool.pool_second != number) continue;
    is_found = true;
    EXPECT_EQUAL(pool.small_pool.added, 2 * kMiB);
    EXPECT_EQUAL(pool.all.peak, 2 * kMiB);
    EXPECT_EQUAL(pool.all.removed, is_gone ? 2 * kMiB : 0u);
  }
  EXPECT(is_found);
}

// The devices' allocators are made by whichever thread comes first; they are never destroyed, so this comes last.
void test_in_pytorch_s_place(const std::string& folder) {
  const std::string path = folder + "/torch.gpumem.journal";
  start_recording(path);
  pretend_card(256 * kMiB, 2);
  EXPECT_EQUAL(gm_torch_prepare("garbage_collection_threshold:0.5,max_split_size_mb:20", 0, 3, nullptr, 0), GM_OK);
  std::vector<std::thread> capturers;
  for (uint32_t device = 0; device < 2; ++device)
    capturers.emplace_back([device] {
      for (unsigned long long number = 1; number < 20; ++number) capture(device, number);
    });
  gm_torch_set_memory_fraction(0.9, 1);
  churn(torch_door(), {}, 2, 31);
  for (std::thread& capturer : capturers) capturer.join();
  gm_torch_empty_cache();  // a capture gets no memory from the cache
  capture(0, 20);
  expect_private_pool(0, 20, false);
  expect_empty(gm_torch_allocator(0));
  expect_private_pool(0, 20, true);
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
