// The recorder: what becomes of events, frees in two halves, marks, scopes, facts and threads.
#include <pthread.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "expect.h"
#include "gpumem_allocator.h"
#include "journal_reading.h"
#include "recording.h"

namespace {

using gpumem::EntryKind;

std::vector<int> kinds_of(const JournalContents& contents) {
  std::vector<int> kinds;
  for (const auto& [event, record] : contents.records) kinds.push_back(record.kind);
  return kinds;
}

void test_free_in_two_halves_is_one_record(const std::string& folder) {
  const std::string path = folder + "/halves.gpumem.journal";
  start_recording(path);
  record(GM_ALLOC, 0, 0x1000);
  record(GM_FREE_REQUESTED, 0, 0x1000);
  record(GM_FREE_COMPLETED, 0, 0x1000, GM_FLAG_MERGED_NEXT);
  record(GM_FREE_REQUESTED, 0, 0x2000);  // deferred: something else comes first
  record(GM_ALLOC, 0, 0x3000);
  record(GM_FREE_COMPLETED, 0, 0x2000);
  record(GM_FREE_REQUESTED, 0, 0x4000);  // another device's events do not part the halves
  record(GM_ALLOC, 1, 0x4000);
  record(GM_FREE_COMPLETED, 0, 0x4000);
  record(GM_FREE_REQUESTED, 1, 0x5000);  // completed is another block's
  record(GM_FREE_COMPLETED, 1, 0x6000);
  gm_recorder_stop("exit");
  const JournalContents contents = read_journal(path);
  const std::vector<int> expected = {GM_ALLOC, GM_FREE,  GM_FREE_REQUESTED, GM_ALLOC,         GM_FREE_COMPLETED,
                                     GM_FREE,  GM_ALLOC, GM_FREE_REQUESTED, GM_FREE_COMPLETED};
  EXPECT(kinds_of(contents) == expected);
  EXPECT_EQUAL(contents.records.at(1).flags, GM_FLAG_MERGED_NEXT);
  EXPECT_EQUAL(contents.committed_count, expected.size());
}

// PyTorch's own allocator and ours on one device have a lock each: neither's events part the other's halves.
void test_allocators_of_one_device_record_side_by_side(const std::string& folder) {
  const std::string path = folder + "/lanes.gpumem.journal";
  start_recording(path);
  const gm_allocator_options options = {"", 1u << 30, GM_NO_LIMIT, GM_DEVICE_SIMULATED, 0, 0, 0};
  std::vector<gm_allocator*> ours(70);  // more than there are lanes for
  char error[256];
  for (gm_allocator*& allocator : ours) {
    EXPECT_EQUAL(gm_allocator_create(&options, &allocator, error, sizeof error), GM_OK);
  }
  uint64_t addresses[2] = {};
  gm_allocator* const pair[] = {ours.front(), ours.back()};
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQUAL(gm_allocator_alloc(pair[i], 512, 0, &addresses[i]), GM_OK);
    gm_allocator_hold_streams(pair[i], 1);
    gm_allocator_record_stream(pair[i], addresses[i], 7);
  }
  const uint64_t before = read_journal(path).records.size();
  record(GM_FREE_REQUESTED, 0, 0x1000);
  for (int i = 0; i < 2; ++i) gm_allocator_free(pair[i], addresses[i]);
  record(GM_FREE_COMPLETED, 0, 0x1000);
  for (gm_allocator* allocator : pair) gm_allocator_empty_cache(allocator);
  for (gm_allocator* allocator : ours) gm_allocator_destroy(allocator);
  gm_recorder_stop("exit");
  const std::vector<int> kinds = kinds_of(read_journal(path));
  const std::vector<int> frees(kinds.begin() + static_cast<std::ptrdiff_t>(before), kinds.end());
  const std::vector<int> expected = {GM_FREE,        GM_FREE_REQUESTED, GM_FREE_REQUESTED,
                                     GM_EMPTY_CACHE, GM_FREE_COMPLETED, GM_SEGMENT_FREE,
                                     GM_EMPTY_CACHE, GM_FREE_COMPLETED, GM_SEGMENT_FREE};
  EXPECT(frees == expected);
}

void test_stop_settles_an_open_free(const std::string& folder) {
  const std::string path = folder + "/settled.gpumem.journal";
  start_recording(path);
  record(GM_FREE_REQUESTED, 3, 1);
  EXPECT_EQUAL(read_journal(path).committed_count, 0);
  EXPECT_EQUAL(gm_recorder_stop("exit 3"), GM_OK);
  EXPECT_EQUAL(read_journal(path).committed_count, 1);
  EXPECT_EQUAL(read_journal(path).ended_by, "exit 3");
  EXPECT_EQUAL(gm_recorder_stop("again"), GM_NOT_RECORDING);
  EXPECT_EQUAL(record(GM_ALLOC, 0, 1), GM_NOT_RECORDING);
}

void expect_fields(const JournalContents& contents, uint64_t before_ns, uint32_t outer, uint32_t inner) {
  const gm_record& first = contents.records.at(0);
  EXPECT_EQUAL(first.address, 1);
  EXPECT_EQUAL(first.requested_bytes, 2);
  EXPECT_EQUAL(first.block_bytes, 3);
  EXPECT_EQUAL(first.split_bytes, 4);
  EXPECT_EQUAL(first.flags, GM_FLAG_SPLIT);
  EXPECT_EQUAL(first.device, 2);
  EXPECT(first.time_ns >= before_ns && first.time_ns <= gm_clock_ns());
  EXPECT_EQUAL(first.scope, inner);
  EXPECT_EQUAL(first.thread, 1);
  EXPECT_EQUAL(first.stream, 1);
  EXPECT_EQUAL(first.pool, 1);
  EXPECT_EQUAL(contents.records.at(1).scope, outer);
  EXPECT_EQUAL(contents.records.at(1).stream, 2);
  EXPECT_EQUAL(contents.records.at(2).scope, 0);
  EXPECT_EQUAL(contents.records.at(2).stream, 1);
  EXPECT_EQUAL(contents.records.at(2).pool, 0);
  EXPECT_EQUAL(contents.records.at(3).device, 255);
  EXPECT_EQUAL(contents.payloads(EntryKind::String).at(contents.records.at(3).address - 1), "epoch");
  EXPECT_EQUAL(contents.records.at(4).requested_bytes, 41);
  EXPECT_EQUAL(contents.payloads(EntryKind::Stream).size(), 2);
  EXPECT_EQUAL(contents.payloads(EntryKind::Thread).size(), 1);
}

void test_record_carries_what_the_recorder_knows(const std::string& folder) {
  const std::string path = folder + "/fields.gpumem.journal";
  start_recording(path);
  uint32_t outer = 0, inner = 0;
  gm_scope_push("forward", &outer);
  gm_scope_push("layer0", &inner);
  gm_event event = {1, 2, 3, 4, 0x55, 0, 9, GM_FLAG_SPLIT, 2, GM_ALLOC, 0, 0};
  const uint64_t before_ns = gm_clock_ns();
  gm_record_event(&event);
  gm_scope_pop();
  event.stream = 0x66;
  gm_record_event(&event);
  gm_scope_pop();
  event.stream = 0x55;
  event.pool_second = 0;
  gm_record_event(&event);
  EXPECT_EQUAL(gm_scope_pop(), GM_BAD_ARGUMENT);
  uint64_t position = 0;
  EXPECT_EQUAL(gm_record_mark(GM_MARK, "epoch", 0, &position), GM_OK);
  EXPECT_EQUAL(position, 3);
  gm_record_mark(GM_STEP, nullptr, 41, &position);
  gm_recorder_stop("exit");
  expect_fields(read_journal(path), before_ns, outer, inner);
}

void test_events_can_be_switched_off(const std::string& folder) {
  const std::string path = folder + "/switch.gpumem.journal";
  start_recording(path);
  gm_recorder_set_enabled(0);
  EXPECT_EQUAL(record(GM_ALLOC, 0, 1), GM_NOT_RECORDING);
  gm_recorder_set_enabled(1);
  EXPECT_EQUAL(record(GM_ALLOC, 0, 2), GM_OK);
  gm_recorder_stop("exit");
  EXPECT_EQUAL(read_journal(path).records.size(), 1);
}

// Threads on devices of their own, marks, scopes, readings and facts all at once, then a stop in the middle of it.
void test_threads_record_while_the_recording_stops(const std::string& folder) {
  const std::string path = folder + "/stop.gpumem.journal";
  start_recording(path);
  std::atomic<bool> is_over{false};
  std::atomic<uint64_t> recorded[4] = {};
  std::vector<std::thread> threads;
  for (uint8_t device = 0; device < 4; ++device) {
    threads.emplace_back([&, device] {
      gm_reading reading = {};
      for (uint64_t i = 1; !is_over.load(); ++i) {
        gm_scope_push(i % 2 ? "odd" : "even", nullptr);
        if (record(GM_ALLOC, device, i) == GM_OK) ++recorded[device];
        record(GM_FREE_REQUESTED, device, i);
        record(GM_FREE_COMPLETED, device, i);
        gm_scope_pop();
        if (i % 64 == 0) gm_record_mark(GM_STEP, nullptr, i, nullptr);
        if (i % 256 == 0) gm_record_reading(&reading);
        if (i % 512 == 0) gm_record_fact("note", "\"x\"", 3);
      }
    });
  }
  while (recorded[0].load() < 20000) std::this_thread::yield();
  gm_recorder_stop("exit");
  is_over.store(true);
  for (std::thread& thread : threads) thread.join();
  const JournalContents contents = read_journal(path);
  EXPECT(contents.is_closed);
  EXPECT_EQUAL(contents.torn_count, 0);
  uint64_t allocs[4] = {};
  for (const auto& [event, record] : contents.records) {
    if (record.kind == GM_ALLOC) ++allocs[record.device];
  }
  // A call under way during the stop may have returned after the file was closed.
  for (int device = 0; device < 4; ++device) EXPECT(allocs[device] + 1 >= recorded[device].load());
}

void test_time_never_decreases_within_a_device(const std::string& folder) {
  const std::string path = folder + "/time.gpumem.journal";
  start_recording(path);
  std::vector<std::thread> threads;
  for (uint8_t device = 0; device < 3; ++device) {
    threads.emplace_back([device] {
      for (uint64_t i = 0; i < 20000; ++i) {
        record(GM_ALLOC, device, i);
        if (i % 16 == 0) gm_record_mark(GM_STEP, nullptr, i, nullptr);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  gm_recorder_stop("exit");
  uint64_t latest[256] = {}, decreases = 0;
  for (const auto& [event, record] : read_journal(path).records) {
    decreases += record.time_ns < latest[record.device] ? 1 : 0;
    latest[record.device] = record.time_ns;
  }
  EXPECT_EQUAL(decreases, 0);
}

// Times come from the processor's counter once its rate is known, be it read by the caller or here, and whatever the
// caller gives for it.
void test_times_are_the_system_clocks(const std::string& folder) {
  const std::string path = folder + "/clock.gpumem.journal";
  constexpr uint64_t kTolerance = 100'000;  // nanoseconds; a microsecond in practice
  constexpr uint64_t kEvents = 60'000;
  start_recording(path);
  std::vector<uint64_t> times_ns(kEvents + 1);
  gm_event event = {};
  event.kind = GM_ALLOC;
  for (uint64_t i = 0; i < kEvents; ++i) {
    times_ns[i] = gm_clock_ns();
    event.ticks = i % 5 == 1 ? i : i % 7 == 1 ? UINT64_MAX - i : 0;
    EXPECT_EQUAL(gm_record_event(&event), GM_OK);
    if (i % 10'000 == 0) ::usleep(3000);
  }
  times_ns[kEvents] = gm_clock_ns();
  gm_recorder_stop("exit");
  const JournalContents contents = read_journal(path);
  uint64_t off = 0;
  for (uint64_t i = 0; i < kEvents; ++i) {
    const uint64_t time_ns = contents.records.at(i).time_ns;
    off += time_ns + kTolerance < times_ns[i] || time_ns > times_ns[i + 1] + kTolerance ? 1 : 0;
  }
  EXPECT_EQUAL(off, 0);
}

void test_waiting_for_segment_events(const std::string& folder) {
  start_recording(folder + "/segments.gpumem.journal");
  gm_recorder_counts counts;
  gm_recorder_get_counts(&counts);
  const uint64_t seen = counts.segment_events;
  EXPECT_EQUAL(gm_wait_segment_event(seen, 5), seen);
  std::thread waiter([seen] { EXPECT_EQUAL(gm_wait_segment_event(seen, 60000), seen + 1); });
  ::usleep(20000);
  record(GM_ALLOC, 0, 1);
  record(GM_SEGMENT_ALLOC, 0, 1);
  waiter.join();
  std::thread released([seen] { EXPECT_EQUAL(gm_wait_segment_event(seen + 1, 60000), seen + 1); });
  ::usleep(20000);
  gm_recorder_stop("exit");
  released.join();
}

struct FreesAtItsEnd {
  ~FreesAtItsEnd() { record(GM_FREE, 0, 0x1000); }
  uint64_t address = 0;
};
thread_local FreesAtItsEnd t_frees_at_its_end;

// What a program's thread-local objects free as a thread ends is that thread's, in its scope. What the values of
// pthread keys free comes later: another thread by its number, and nothing of either is left (the address sanitizer
// looks).
void test_thread_records_while_it_ends(const std::string& folder) {
  const std::string path = folder + "/ending.gpumem.journal";
  start_recording(path);
  pthread_key_t key;
  EXPECT_EQUAL(pthread_key_create(&key, [](void*) { record(GM_FREE, 0, 0x2000); }), 0);
  std::thread([key] {
    t_frees_at_its_end.address = 0x1000;
    pthread_setspecific(key, &t_frees_at_its_end);
    gm_scope_push("in the thread", nullptr);
    record(GM_ALLOC, 0, t_frees_at_its_end.address);
  }).join();
  pthread_key_delete(key);
  gm_recorder_stop("exit");
  const JournalContents contents = read_journal(path);
  EXPECT_EQUAL(contents.records.size(), 3);
  EXPECT_EQUAL(contents.records.at(0).thread, 1);
  EXPECT_EQUAL(contents.records.at(1).thread, 1);
  EXPECT_EQUAL(contents.records.at(1).scope, contents.records.at(0).scope);
  EXPECT(contents.records.at(1).scope != 0);
  EXPECT_EQUAL(contents.records.at(2).address, 0x2000);
  EXPECT_EQUAL(contents.records.at(2).scope, 0);
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) return 2;
  const std::string folder = arguments[1];
  run_case("a free in two halves is one record", [&] { test_free_in_two_halves_is_one_record(folder); });
  run_case("allocators of one device record side by side",
           [&] { test_allocators_of_one_device_record_side_by_side(folder); });
  run_case("stop settles an open free", [&] { test_stop_settles_an_open_free(folder); });
  run_case("a record carries what the recorder knows", [&] { test_record_carries_what_the_recorder_knows(folder); });
  run_case("events can be switched off", [&] { test_events_can_be_switched_off(folder); });
  run_case("threads record while the recording stops", [&] { test_threads_record_while_the_recording_stops(folder); });
  run_case("time never decreases within a device", [&] { test_time_never_decreases_within_a_device(folder); });
  run_case("times are the system clock's", [&] { test_times_are_the_system_clocks(folder); });
  run_case("a thread records while it ends", [&] { test_thread_records_while_it_ends(folder); });
  run_case("waiting for segment events", [&] { test_waiting_for_segment_events(folder); });
  return exit_code();
}
