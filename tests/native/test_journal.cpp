// The journal on its own: records from many threads, window after window, entries small and oversize.
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "expect.h"
#include "journal_reading.h"

namespace {

using gpumem::EntryKind;
using gpumem::WindowState;

constexpr uint64_t kSlots = gpumem::kRecordWindowBytes / sizeof(gm_record);
const uint8_t kRunId[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};

// CRC-32 bit by bit: not the table under test.
uint32_t slow_crc32(const std::string& bytes) {
  uint32_t value = 0xFFFFFFFFu;
  for (const char byte : bytes) {
    value ^= static_cast<uint8_t>(byte);
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ (value & 1 ? 0xEDB88320u : 0u);
  }
  return ~value;
}

gm_journal* create(const std::string& path) {
  ::unlink(path.c_str());
  gm_journal* journal = nullptr;
  int32_t errno_value;
  EXPECT_EQUAL(gm_journal_create(path.c_str(), kRunId, &errno_value, &journal), GM_OK);
  return journal;
}

void append_many(gm_journal* journal, uint16_t thread, uint64_t count, std::vector<uint64_t>* positions) {
  gm_record record = {};
  record.thread = thread;
  record.kind = GM_ALLOC;
  for (uint64_t i = 0; i < count; ++i) {
    record.address = i;
    record.requested_bytes = i * 3 + thread;
    uint64_t position = 0;
    if (gm_journal_append(journal, &record, &position) == GM_OK) positions->push_back(position);
  }
}

// 4 threads, three and a half windows: each position once, each record as it was given, in each thread's order.
void test_threads_append_across_windows(const std::string& folder) {
  constexpr uint16_t kThreads = 4;
  constexpr uint64_t kEach = kSlots * 7 / 8;
  const std::string path = folder + "/threads.gpumem.journal";
  gm_journal* journal = create(path);
  std::vector<uint64_t> positions[kThreads];
  std::vector<std::thread> threads;
  for (uint16_t i = 0; i < kThreads; ++i) threads.emplace_back(append_many, journal, i, kEach, &positions[i]);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQUAL(gm_journal_close(journal, "exit"), GM_OK);
  const JournalContents contents = read_journal(path);
  EXPECT(contents.is_whole && contents.is_closed);
  EXPECT_EQUAL(contents.ended_by, "exit");
  EXPECT_EQUAL(contents.records.size(), kThreads * kEach);
  EXPECT_EQUAL(contents.committed_count, kThreads * kEach);
  EXPECT_EQUAL(contents.hole_count, 0);
  EXPECT_EQUAL(contents.torn_count, 0);
  uint64_t wrong_count = 0;
  for (uint16_t thread = 0; thread < kThreads; ++thread) {
    EXPECT_EQUAL(positions[thread].size(), kEach);
    for (uint64_t i = 0; i < positions[thread].size(); ++i) {
      const gm_record& record = contents.records.at(positions[thread][i]);
      const bool is_right = record.thread == thread && record.address == i && record.requested_bytes == i * 3 + thread;
      wrong_count += is_right ? 0 : 1;
    }
  }
  EXPECT_EQUAL(wrong_count, 0);
  EXPECT_EQUAL(contents.states.size() >= 4, true);
  for (int window = 0; window < 3; ++window) EXPECT_EQUAL(contents.states[window], WindowState::Full);
  EXPECT_EQUAL(contents.states[3], WindowState::Open);
}

void test_window_becomes_full_with_its_last_record(const std::string& folder) {
  const std::string path = folder + "/full.gpumem.journal";
  gm_journal* journal = create(path);
  std::vector<uint64_t> positions;
  append_many(journal, 1, kSlots - 1, &positions);
  EXPECT_EQUAL(read_journal(path).states[0], WindowState::Open);
  append_many(journal, 1, 1, &positions);
  EXPECT(waits_until_full(path, 0));
  append_many(journal, 1, 1, &positions);
  EXPECT_EQUAL(positions.back(), kSlots);
  const JournalContents contents = read_journal(path);
  EXPECT_EQUAL(contents.states[1], WindowState::Open);
  EXPECT_EQUAL(contents.is_closed, false);
  gm_journal_close(journal, "exit");
}

std::string make_payload(uint32_t id, uint32_t length) {
  std::string payload(length, 'x');
  for (uint32_t i = 0; i < length; ++i) payload[i] = static_cast<char>(id * 31 + i);
  return payload;
}

// A program without standard input: what it prints into whatever lies there must not go into the journal.
void test_file_is_no_standard_stream(const std::string& folder) {
  const std::string path = folder + "/streams.gpumem.journal";
  const int input = ::fcntl(0, F_DUPFD_CLOEXEC, 10);
  ::close(0);
  gm_journal* journal = create(path);
  EXPECT_EQUAL(::fcntl(0, F_GETFD), -1);
  std::vector<uint64_t> positions;
  append_many(journal, 1, 10, &positions);
  EXPECT_EQUAL(positions.size(), 10u);
  EXPECT_EQUAL(gm_journal_close(journal, "closed"), GM_OK);
  EXPECT_EQUAL(::fcntl(0, F_GETFD), -1);
  if (input >= 0) ::dup2(input, 0);
  ::close(input);
}

// Entries of every length around the alignment, from threads, across entry windows; a reader sees all, checked.
void test_entries_turn_windows(const std::string& folder) {
  constexpr uint32_t kThreads = 3, kEach = 2000;
  const std::string path = folder + "/entries.gpumem.journal";
  gm_journal* journal = create(path);
  std::vector<std::thread> threads;
  for (uint32_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([journal, thread] {
      for (uint32_t i = 0; i < kEach; ++i) {
        const uint32_t id = thread * kEach + i;
        const std::string payload = make_payload(id, id % 3000);
        gm_journal_append_entry(journal, 1, id, payload.data(), static_cast<uint32_t>(payload.size()));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const JournalContents contents = read_journal(path);
  EXPECT_EQUAL(contents.entries.size(), kThreads * kEach);
  std::set<uint32_t> ids;
  uint64_t wrong_count = 0;
  for (const Entry& entry : contents.entries) {
    ids.insert(entry.id);
    const bool is_right =
        entry.payload == make_payload(entry.id, entry.id % 3000) && entry.check == slow_crc32(entry.payload);
    wrong_count += is_right ? 0 : 1;
  }
  EXPECT_EQUAL(ids.size(), kThreads * kEach);
  EXPECT_EQUAL(wrong_count, 0);
  gm_journal_close(journal, "exit");
}

void test_oversize_entry_stands_in_a_window_of_its_own(const std::string& folder) {
  const std::string path = folder + "/oversize.gpumem.journal";
  gm_journal* journal = create(path);
  const uint32_t lengths[] = {10, static_cast<uint32_t>(gpumem::kEntryWindowBytes - 16),
                              static_cast<uint32_t>(gpumem::kEntryWindowBytes - 15), 9u << 20, 11};
  for (uint32_t id = 0; id < 5; ++id) {
    const std::string payload = make_payload(id, lengths[id]);
    EXPECT_EQUAL(gm_journal_append_entry(journal, 8, id, payload.data(), lengths[id]), GM_OK);
  }
  gm_journal_close(journal, "exit");
  std::map<uint32_t, std::string> payloads;
  for (const Entry& entry : read_journal(path).entries) payloads[entry.id] = entry.payload;
  EXPECT_EQUAL(payloads.size(), 5);
  for (uint32_t id = 0; id < 5; ++id) EXPECT(payloads[id] == make_payload(id, lengths[id]));
}

void test_records_stay_readable_while_entries_and_windows_grow(const std::string& folder) {
  const std::string path = folder + "/mixed.gpumem.journal";
  gm_journal* journal = create(path);
  std::vector<uint64_t> positions;
  std::thread records([&] { append_many(journal, 2, kSlots * 5 / 2, &positions); });
  std::thread entries([&] {
    const std::string payload = make_payload(7, 900);
    for (uint32_t id = 1; id <= 12000; ++id) gm_journal_append_entry(journal, 1, id, payload.data(), 900);
  });
  records.join();
  entries.join();
  gm_journal_close(journal, "signal 15");
  const JournalContents contents = read_journal(path);
  EXPECT_EQUAL(contents.records.size(), kSlots * 5 / 2);
  EXPECT_EQUAL(contents.entries.size(), 12000);
  EXPECT_EQUAL(contents.ended_by, "signal 15");
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) return 2;
  const std::string folder = arguments[1];
  run_case("threads append across windows", [&] { test_threads_append_across_windows(folder); });
  run_case("a window becomes full with its last record",
           [&] { test_window_becomes_full_with_its_last_record(folder); });
  run_case("no stream", [&] { test_file_is_no_standard_stream(folder); });
  run_case("entries turn windows", [&] { test_entries_turn_windows(folder); });
  run_case("an oversize entry stands in a window of its own",
           [&] { test_oversize_entry_stands_in_a_window_of_its_own(folder); });
  run_case("records stay readable while entries and windows grow",
           [&] { test_records_stay_readable_while_entries_and_windows_grow(folder); });
  return exit_code();
}
