// Frees whose second half is long in coming: they hold no window up, and no record of a FULL window is ever changed.
//
// The thread sanitizer knows nothing of the barrier that the helper thread has all threads pass, and need not: the
// barrier orders atomics alone, and what is no atomic follows from them by acquire and release.
#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "expect.h"
#include "journal_file.h"
#include "journal_reading.h"
#include "record_hold.h"
#include "recording.h"

namespace {

using gpumem::WindowState;

constexpr uint64_t kSlots = gpumem::kRecordWindowBytes / sizeof(gm_record);

void record_allocs(uint8_t device, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) record(GM_ALLOC, device, i);
}

bool are_equal(const std::vector<gm_record>& one, const std::vector<gm_record>& other) {
  return one.size() == other.size() && std::memcmp(one.data(), other.data(), one.size() * sizeof(gm_record)) == 0;
}

void test_quiet_device_holds_no_window_up(const std::string& folder) {
  const std::string path = folder + "/quiet.gpumem.journal";
  start_recording(path);
  record(GM_ALLOC, 1, 77);
  record(GM_FREE_REQUESTED, 1, 77, GM_FLAG_SPLIT);
  record_allocs(0, 3 * kSlots);
  for (size_t window = 0; window < 3; ++window) EXPECT(waits_until_full(path, window));
  EXPECT_EQUAL(read_states(path)[3], WindowState::Open);
  const std::vector<gm_record> before = read_record_window(path, 0);
  EXPECT_EQUAL(record(GM_FREE_COMPLETED, 1, 77, GM_FLAG_MERGED_NEXT), GM_OK);
  EXPECT(are_equal(read_record_window(path, 0), before));
  EXPECT_EQUAL(before[1].kind, GM_FREE_REQUESTED);
  EXPECT_EQUAL(before[1].flags, GM_FLAG_SPLIT);
  record(GM_FREE_REQUESTED, 1, 78);  // the device's next holds are holds again
  record(GM_FREE_COMPLETED, 1, 78);
  gm_recorder_stop("exit");
  EXPECT(are_equal(read_record_window(path, 0), before));
  const std::vector<gm_record> last = read_record_window(path, 3);
  EXPECT_EQUAL(last[1].address, kSlots * 3 - 1);
  EXPECT_EQUAL(last[2].kind, GM_FREE_COMPLETED);
  EXPECT_EQUAL(last[2].address, 77);
  EXPECT_EQUAL(last[2].flags, GM_FLAG_MERGED_NEXT);
  EXPECT_EQUAL(last[3].kind, GM_FREE);
  EXPECT_EQUAL(last[3].address, 78);
  EXPECT_EQUAL(last[4].commit, 0);
}

void test_hold_lasts_while_its_window_has_a_slot_left(const std::string& folder) {
  const std::string path = folder + "/slot_left.gpumem.journal";
  start_recording(path);
  record(GM_FREE_REQUESTED, 1, 77);
  record_allocs(0, kSlots - 2);
  ::usleep(200000);  // time enough for whoever might take it back
  record(GM_FREE_COMPLETED, 1, 77);
  EXPECT_EQUAL(read_states(path)[0], WindowState::Open);
  record_allocs(0, 1);
  EXPECT(waits_until_full(path, 0));
  gm_recorder_stop("exit");
  EXPECT_EQUAL(read_record_window(path, 0)[0].kind, GM_FREE);
  EXPECT_EQUAL(read_states(path).size(), 2);
  EXPECT_EQUAL(read_record_window(path, 1)[0].commit, 0);
}

// Nothing is recorded after it, by anyone, and the device's next event is its completion or another.
void test_free_in_the_last_slot_is_taken_back(const std::string& folder) {
  const std::string path = folder + "/last_slot.gpumem.journal";
  for (const uint8_t next : {GM_FREE_COMPLETED, GM_ALLOC}) {
    start_recording(path);
    record_allocs(0, kSlots - 1);
    record(GM_FREE_REQUESTED, 0, 77);
    EXPECT(waits_until_full(path, 0));
    const std::vector<gm_record> before = read_record_window(path, 0);
    record(next, 0, 77);
    gm_recorder_stop("exit");
    EXPECT(are_equal(read_record_window(path, 0), before));
    EXPECT_EQUAL(before.back().kind, GM_FREE_REQUESTED);
    EXPECT_EQUAL(read_record_window(path, 1)[0].kind, next);
    EXPECT_EQUAL(read_record_window(path, 1)[1].commit, 0);
  }
}

// ---- many at once ----

constexpr uint8_t kDeferring = 8;  // devices behind device 0

// One device's frees, the second halves after pauses of all lengths around those after which a hold is taken back. How
// many pairs.
uint64_t defer_frees(uint8_t device, const std::atomic<bool>& is_over) {
  uint64_t count = 0;
  for (; !is_over.load(); ++count) {
    record(GM_FREE_REQUESTED, device, count);
    ::usleep(count % 16 == 0 ? 100000u + device * 10000u : static_cast<unsigned>(count % 16 * 200));
    record(GM_FREE_COMPLETED, device, count);
  }
  return count;
}

// The first record windows as they were once they were seen FULL.
std::vector<std::vector<gm_record>> watch_windows(const std::string& path, size_t count) {
  std::vector<std::vector<gm_record>> seen;
  for (size_t window = 0; window < count; ++window) {
    EXPECT(waits_until_full(path, window));
    seen.push_back(read_record_window(path, window));
  }
  return seen;
}

// The halves of each device's frees are all there, in order: address after address.
void expect_whole(const std::string& path, const std::vector<uint64_t>& pair_counts) {
  std::vector<uint64_t> requested(kDeferring + 1), completed(kDeferring + 1);
  uint64_t misplaced = 0;
  for (size_t window = 0; window < read_states(path).size(); ++window) {
    for (const gm_record& record : read_record_window(path, window)) {
      if (record.commit == 0 || record.kind == GM_ALLOC) continue;
      if (record.kind != GM_FREE_COMPLETED) misplaced += record.address != requested[record.device]++ ? 1 : 0;
      if (record.kind != GM_FREE_REQUESTED) misplaced += record.address != completed[record.device]++ ? 1 : 0;
    }
  }
  EXPECT_EQUAL(misplaced, 0);
  EXPECT(requested == pair_counts);
  EXPECT(completed == pair_counts);
}

void test_devices_complete_while_windows_fill(const std::string& folder) {
  constexpr size_t kWindows = 3;
  const std::string path = folder + "/many.gpumem.journal";
  start_recording(path);
  std::atomic<bool> is_over{false};
  std::vector<uint64_t> pair_counts(kDeferring + 1);
  std::vector<std::thread> threads;
  for (uint8_t device = 1; device <= kDeferring; ++device) {
    threads.emplace_back([&, device] { pair_counts[device] = defer_frees(device, is_over); });
  }
  std::thread filler([] { record_allocs(0, kWindows * kSlots); });
  const std::vector<std::vector<gm_record>> seen = watch_windows(path, kWindows);
  filler.join();
  is_over.store(true);
  for (std::thread& thread : threads) thread.join();
  gm_recorder_stop("exit");
  for (size_t window = 0; window < kWindows; ++window) {
    EXPECT(are_equal(read_record_window(path, window), seen[window]));
  }
  expect_whole(path, pair_counts);
}

void spin(uint32_t turns) {
  while (turns-- > 0) std::atomic_signal_fence(std::memory_order_seq_cst);
}

// One hold, its source and its helper on the same nanoseconds; the records are no atomics.
void test_change_and_taking_back_exclude_each_other() {
  constexpr uint32_t kTurns = 10000;
  gpumem::RecordHold hold;
  std::vector<gm_record> records(kTurns), seen(kTurns);
  std::atomic<uint32_t> committed{0}, passed{0};
  std::thread source([&] {
    for (uint32_t turn = 0; turn < kTurns; ++turn) {
      hold.open(turn, &records[turn]);
      committed.store(turn + 1, std::memory_order_release);
      const uint32_t pause = turn / 2 % 512 << turn / 1024 % 8;
      spin(turn % 2 ? pause : 0);
      if (gm_record* record = hold.begin_change()) {
        spin(turn % 2 ? 0 : pause);
        record->kind = GM_FREE;
      }
      hold.let_go();
      while (passed.load(std::memory_order_acquire) <= turn) std::this_thread::yield();
    }
  });
  for (uint32_t turn = 0; turn < kTurns; ++turn) {
    while (committed.load(std::memory_order_acquire) <= turn) std::this_thread::yield();
    bool is_held = hold.is_in(turn);
    while (is_held) {
      hold.take_back(turn);
      is_held = !gpumem::pass_barrier_on_every_thread() ? hold.is_in(turn) : hold.is_changing_in(turn);
    }
    seen[turn] = records[turn];
    passed.store(turn + 1, std::memory_order_release);
  }
  source.join();
  EXPECT(are_equal(seen, records));
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) return 2;
  const std::string folder = arguments[1];
  run_case("a quiet device holds no window up", [&] { test_quiet_device_holds_no_window_up(folder); });
  run_case("a hold lasts while its window has a slot left",
           [&] { test_hold_lasts_while_its_window_has_a_slot_left(folder); });
  run_case("a free in the last slot is taken back", [&] { test_free_in_the_last_slot_is_taken_back(folder); });
  run_case("devices complete while windows fill", [&] { test_devices_complete_while_windows_fill(folder); });
  run_case("a change and its taking back exclude each other", test_change_and_taking_back_exclude_each_other);
  return exit_code();
}
