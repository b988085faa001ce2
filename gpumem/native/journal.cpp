#include "journal.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "journal_file.h"

namespace gpumem {

namespace {

void write_entry(uint8_t* target, const EntryHeader& head, const void* bytes) {
  std::memcpy(target, &head, sizeof head);
  if (head.bytes) std::memcpy(target + sizeof head, bytes, head.bytes);
}

}  // namespace

Journal::~Journal() {
  close("abandoned");
  if (windows_) {
    for (uint32_t window = 0; window < window_count_; ++window) {
      if (windows_[window].records) ::munmap(windows_[window].records, kRecordWindowBytes);
    }
    ::munmap(windows_, kWindowCapacity * sizeof(Window));
  }
  if (header_) ::munmap(header_, head_bytes_);
}

// ---- records ----

gm_status Journal::append(const gm_record& record, uint64_t* position) {
  const RecordPlace place = take();
  if (place.record == nullptr) return stopped_status();
  std::memcpy(place.record, &record, offsetof(gm_record, commit));
  if (position) *position = directory_[place.window].first_record + place.slot;
  commit(place);
  return GM_OK;
}

// `window` has no slot left.
RecordPlace Journal::take_in_next_window(uint32_t window) {
  for (;;) {
    if (turn_window(window) != GM_OK) return kNoPlace;
    const WindowInUse current = current_.load(std::memory_order_acquire);
    if (current.is_none()) return kNoPlace;
    window = current.window();
    const uint64_t slot = directory_[window].taken.fetch_add(1, std::memory_order_relaxed);
    if (slot < kRecordsPerWindow) return {window, static_cast<uint32_t>(slot), current.records() + slot};
  }
}

// Whether every slot handed out so far is committed. Goes on where it stopped the last time, so that a window is looked
// through once.
bool Journal::find_committed(uint32_t window) {
  const uint64_t taken = directory_[window].taken.load(std::memory_order_relaxed);
  const uint64_t slots = taken < kRecordsPerWindow ? taken : kRecordsPerWindow;
  const gm_record* records = windows_[window].records;
  uint32_t& known = windows_[window].committed_slots;
  while (known < slots && __atomic_load_n(&records[known].commit, __ATOMIC_ACQUIRE) != 0) ++known;
  return known == slots;
}

void Journal::set_full(uint32_t window) {
  directory_[window].committed.store(kRecordsPerWindow, std::memory_order_relaxed);
  directory_[window].state.store(static_cast<uint32_t>(WindowState::Full), std::memory_order_release);
}

// Makes the prepared window current; reserves one itself where the helper is late.
gm_status Journal::turn_window(uint32_t full_window) {
  const std::lock_guard<std::mutex> lock(grow_mutex_);
  const WindowInUse current = current_.load(std::memory_order_relaxed);
  if (current.is_none() || current.window() != full_window) return GM_OK;
  if (prepared_ == kNoWindow) {
    const gm_status status = reserve_record_window(&prepared_);
    if (status != GM_OK) return stop_by_itself(status);
  }
  directory_[prepared_].state.store(static_cast<uint32_t>(WindowState::Open), std::memory_order_release);
  current_.store({prepared_, windows_[prepared_].records}, std::memory_order_release);
  prepared_ = kNoWindow;
  return GM_OK;
}

// grow_mutex_ is held; errno says why.
gm_status Journal::stop_by_itself(gm_status status) {
  errno_value_.store(errno, std::memory_order_relaxed);
  status_.store(status, std::memory_order_release);
  record_count_at_stop_.store(record_count(), std::memory_order_relaxed);
  current_.store({}, std::memory_order_release);
  return status;
}

gm_status Journal::stopped_status() const {
  const gm_status status = this->status();
  return status == GM_OK ? static_cast<gm_status>(GM_NOT_RECORDING) : status;
}

uint64_t Journal::record_count() const {
  const WindowInUse current = current_.load(std::memory_order_acquire);
  if (current.is_none()) return record_count_at_stop_.load(std::memory_order_relaxed);
  const WindowEntry& entry = directory_[current.window()];
  return entry.first_record + std::min(entry.taken.load(std::memory_order_relaxed), kRecordsPerWindow);
}

// ---- entries ----

gm_status Journal::append_entry(EntryKind kind, uint32_t id, const void* bytes, uint32_t length) {
  const EntryHeader head = {length, static_cast<uint16_t>(kind), 0, id, crc32(bytes, length)};
  const uint64_t entry_bytes = align_up(sizeof head + static_cast<uint64_t>(length), 8);
  const std::lock_guard<std::mutex> lock(entry_mutex_);
  if (!is_open()) return stopped_status();
  if (entry_bytes > kEntryWindowBytes) return append_oversize_entry(head, bytes, entry_bytes);
  if (entry_window_ == kNoWindow ||
      directory_[entry_window_].taken.load(std::memory_order_relaxed) + entry_bytes > kEntryWindowBytes) {
    const gm_status status = turn_entry_window();
    if (status != GM_OK) return status;
  }
  std::atomic<uint64_t>& used = directory_[entry_window_].taken;
  const uint64_t at = used.load(std::memory_order_relaxed);
  write_entry(entry_mapping_ + at, head, bytes);
  used.store(at + entry_bytes, std::memory_order_release);
  return GM_OK;
}

// An entry larger than a window has a window of its own, FULL at once.
gm_status Journal::append_oversize_entry(const EntryHeader& head, const void* bytes, uint64_t entry_bytes) {
  const uint64_t window_bytes = align_up(entry_bytes, page_bytes_);
  const std::lock_guard<std::mutex> lock(grow_mutex_);
  uint32_t window;
  void* mapping;
  const gm_status status = reserve_window(WindowKind::Entries, window_bytes, &window, &mapping);
  if (status != GM_OK) return stop_by_itself(status);
  write_entry(static_cast<uint8_t*>(mapping), head, bytes);
  directory_[window].taken.store(entry_bytes, std::memory_order_release);
  directory_[window].state.store(static_cast<uint32_t>(WindowState::Full), std::memory_order_release);
  ::munmap(mapping, window_bytes);
  return GM_OK;
}

// entry_mutex_ is held.
gm_status Journal::turn_entry_window() {
  const std::lock_guard<std::mutex> lock(grow_mutex_);
  uint32_t window;
  void* mapping;
  const gm_status status = reserve_window(WindowKind::Entries, kEntryWindowBytes, &window, &mapping);
  if (status != GM_OK) return stop_by_itself(status);
  directory_[window].state.store(static_cast<uint32_t>(WindowState::Open), std::memory_order_release);
  uint8_t* full_mapping = entry_mapping_;
  if (full_mapping) {
    directory_[entry_window_].state.store(static_cast<uint32_t>(WindowState::Full), std::memory_order_release);
  }
  entry_mapping_ = static_cast<uint8_t*>(mapping);
  entry_window_ = window;
  if (full_mapping) ::munmap(full_mapping, kEntryWindowBytes);
  return GM_OK;
}

// ---- the end ----

void Journal::close(const char* ended_by) {
  if (is_closed_.exchange(true)) return;
  stop_helper();
  {
    const std::lock_guard<std::mutex> lock(grow_mutex_);
    record_count_at_stop_.store(record_count(), std::memory_order_relaxed);
    current_.store({}, std::memory_order_seq_cst);
  }
  wait_for_appends();
  detach_windows();
  std::strncpy(header_->ended_by, ended_by, sizeof header_->ended_by - 1);
  header_->state.store(static_cast<uint32_t>(JournalState::Closed), std::memory_order_release);
  detach_head();
  close_own_file();
}

// Nanoseconds as a rule: a thread between taking its slot and committing it.
void Journal::wait_for_appends() {
  for (int attempt = 0; attempt < 100; ++attempt) {
    bool is_quiet = true;
    {
      const std::lock_guard<std::mutex> lock(grow_mutex_);  // an entry under way may still take a window
      for (uint32_t window = first_mapped_; window < window_count_; ++window) {
        if (windows_[window].records) is_quiet = find_committed(window) && is_quiet;
      }
    }
    if (is_quiet) return;
    const timespec pause = {0, 200000};
    ::nanosleep(&pause, nullptr);
  }
}

uint64_t Journal::count_committed(uint32_t window) const {
  uint64_t count = windows_[window].committed_slots;
  for (uint64_t slot = count; slot < kRecordsPerWindow; ++slot) {
    count += __atomic_load_n(&windows_[window].records[slot].commit, __ATOMIC_ACQUIRE) != 0 ? 1 : 0;
  }
  return count;
}

// From here on a late thread writes into memory of no file: no fault where the sealer punched a hole on a full disk,
// and no change of a record held open. So holds no longer keep a window from being FULL.
void Journal::detach_windows() {
  const std::lock_guard<std::mutex> entry_lock(entry_mutex_);
  const std::lock_guard<std::mutex> lock(grow_mutex_);
  for (uint32_t window = first_mapped_; window < window_count_; ++window) {
    if (!windows_[window].records) continue;
    const uint64_t committed = count_committed(window);
    replace_mapping(windows_[window].records, kRecordWindowBytes, 0);
    directory_[window].committed.store(committed, std::memory_order_relaxed);
    if (committed == kRecordsPerWindow) set_full(window);
  }
  if (entry_mapping_) ::munmap(entry_mapping_, kEntryWindowBytes);
  entry_mapping_ = nullptr;
  entry_window_ = kNoWindow;
}

void Journal::detach_head() {
  replace_mapping(header_, head_bytes_, kHeaderBytes + window_count_ * sizeof(WindowEntry));
}

void Journal::abandon() {
  if (is_closed_.exchange(true)) return;
  current_.store({}, std::memory_order_relaxed);
  for (uint32_t window = first_mapped_; window < window_count_; ++window) {
    if (windows_[window].records) ::munmap(windows_[window].records, kRecordWindowBytes);
    windows_[window].records = nullptr;
  }
  if (entry_mapping_) ::munmap(entry_mapping_, kEntryWindowBytes);
  ::munmap(header_, head_bytes_);
  header_ = nullptr;
  close_own_file();
}

}  // namespace gpumem
