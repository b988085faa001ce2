#include "journal.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>

#include "check.h"
#include "journal_file.h"

namespace gpumem {

namespace {

// The helper thread starts on the next window when this slot of the current one is taken.
constexpr uint32_t kWakeSlot = kRecordsPerWindow / 4 * 3;

constexpr uint64_t align_up(uint64_t bytes, uint64_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

void write_entry(uint8_t* target, const EntryHeader& head, const void* bytes) {
  std::memcpy(target, &head, sizeof head);
  if (head.bytes) std::memcpy(target + sizeof head, bytes, head.bytes);
}

// Faults every page of a record window in, one at a time, so that nobody waits long for the address space. The
// commit word is written atomically with its own value: the window may already be in use.
void touch_window(gm_record* records, const std::atomic<bool>& ending) {
  constexpr uint64_t kStride = 4096 / sizeof(gm_record);
  for (uint64_t slot = 0; slot < kRecordsPerWindow && !ending.load(std::memory_order_relaxed); slot += kStride) {
    __atomic_fetch_or(&records[slot].commit, 0u, __ATOMIC_RELAXED);
  }
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

// ---- creation and growth ----

gm_status Journal::create(const char* path, const uint8_t* run_id, int32_t* errno_value) {
  GM_CHECK(fd_ < 0);
  fd_ = ::open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd_ < 0) {
    *errno_value = errno;
    return errno == ENOSPC || errno == EDQUOT ? GM_DISK_FULL : GM_CANNOT_CREATE;
  }
  const gm_status status = prepare_file(run_id);
  if (status != GM_OK) {
    *errno_value = errno;
    ::unlink(path);
    ::close(fd_);
    fd_ = -1;
    return status;
  }
  is_closed_.store(false, std::memory_order_relaxed);
  start_helper();
  *errno_value = 0;
  return GM_OK;
}

gm_status Journal::prepare_file(const uint8_t* run_id) {
  page_bytes_ = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  head_bytes_ = align_up(kHeaderBytes + kWindowCapacity * sizeof(WindowEntry), page_bytes_);
  if (::ftruncate(fd_, static_cast<off_t>(head_bytes_)) != 0) return status_of_errno();
  const gm_status reserved = reserve_file(0, align_up(kHeaderBytes, page_bytes_));
  if (reserved != GM_OK) return reserved;
  void* head = ::mmap(nullptr, head_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (head == MAP_FAILED) return GM_CANNOT_MAP;
  header_ = static_cast<Header*>(head);
  directory_ = reinterpret_cast<WindowEntry*>(static_cast<uint8_t*>(head) + kHeaderBytes);
  void* windows = ::mmap(nullptr, kWindowCapacity * sizeof(Window), PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (windows == MAP_FAILED) return GM_CANNOT_MAP;
  windows_ = static_cast<Window*>(windows);
  end_offset_.store(head_bytes_, std::memory_order_relaxed);
  uint32_t first;
  const gm_status status = reserve_record_window(&first);
  if (status != GM_OK) return status;
  write_header(run_id);
  directory_[first].state.store(static_cast<uint32_t>(WindowState::Open), std::memory_order_release);
  current_.store(first, std::memory_order_release);
  return GM_OK;
}

void Journal::write_header(const uint8_t* run_id) {
  header_->version = kJournalVersion;
  header_->byte_order = kByteOrderMark;
  std::memcpy(header_->run_id, run_id, sizeof header_->run_id);
  header_->pid = static_cast<uint32_t>(::getpid());
  header_->window_capacity = kWindowCapacity;
  header_->windows_offset = head_bytes_;
  header_->clock_monotonic_ns = clock_ns(CLOCK_MONOTONIC);
  header_->clock_realtime_ns = clock_ns(CLOCK_REALTIME);
  header_->process_start_ticks = read_process_start_ticks();
  header_->state.store(static_cast<uint32_t>(JournalState::Recording), std::memory_order_release);
  // Last, so that whoever sees the magic sees a whole header.
  uint64_t magic;
  std::memcpy(&magic, kJournalMagic, sizeof magic);
  __atomic_store_n(reinterpret_cast<uint64_t*>(header_->magic), magic, __ATOMIC_RELEASE);
}

// Makes sure that the disk holds [offset, offset + bytes): a full disk is an error here instead of a SIGBUS later.
gm_status Journal::reserve_file(uint64_t offset, uint64_t bytes) {
  if (!reserve_file_bytes(fd_, offset, bytes)) {
    const int error = errno;
    // What a failed attempt has taken goes back: the sealer and the program need the room.
    if (offset >= head_bytes_ && ::ftruncate(fd_, static_cast<off_t>(offset)) != 0) return GM_DISK_FULL;
    errno = error;
    return status_of_errno();
  }
  return GM_OK;
}

// grow_mutex_ is held (or nobody else knows this journal yet).
gm_status Journal::reserve_window(WindowKind kind, uint64_t bytes, uint32_t* window, void** mapping) {
  const uint32_t index = window_count_;
  if (index == kWindowCapacity) {
    errno = EFBIG;
    return GM_DISK_FULL;
  }
  const uint64_t directory_offset = kHeaderBytes + index * sizeof(WindowEntry);
  const uint64_t directory_page = directory_offset / page_bytes_ * page_bytes_;
  gm_status status = reserve_file(directory_page, page_bytes_);
  const uint64_t offset = end_offset_.load(std::memory_order_relaxed);
  if (status == GM_OK) status = reserve_file(offset, bytes);
  if (status != GM_OK) return status;
  *mapping = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, static_cast<off_t>(offset));
  if (*mapping == MAP_FAILED) return GM_CANNOT_MAP;
  WindowEntry& entry = directory_[index];
  entry.kind = static_cast<uint32_t>(kind);
  entry.offset = offset;
  entry.bytes = bytes;
  entry.first_record = kind == WindowKind::Records ? record_windows_ * kRecordsPerWindow : 0;
  window_count_ = index + 1;
  end_offset_.store(offset + bytes, std::memory_order_relaxed);
  header_->window_count.store(window_count_, std::memory_order_release);
  *window = index;
  return GM_OK;
}

gm_status Journal::reserve_record_window(uint32_t* window) {
  void* mapping;
  const gm_status status = reserve_window(WindowKind::Records, kRecordWindowBytes, window, &mapping);
  if (status != GM_OK) return status;
  windows_[*window].records = static_cast<gm_record*>(mapping);
  ++record_windows_;
  return GM_OK;
}

// ---- records ----

gm_status Journal::append(const gm_record& record, uint64_t* position) {
  RecordPlace place;
  const gm_status status = take_slot(&place);
  if (status != GM_OK) return status;
  fill_slot(place, record);
  if (position) *position = directory_[place.window].first_record + place.slot;
  settle(place);
  return GM_OK;
}

gm_status Journal::append_unsettled(const gm_record& record, RecordPlace* place) {
  const gm_status status = take_slot(place);
  if (status == GM_OK) fill_slot(*place, record);
  return status;
}

void Journal::settle(RecordPlace place) {
  WindowEntry& window = directory_[place.window];
  if (window.committed.fetch_add(1, std::memory_order_acq_rel) + 1 != kRecordsPerWindow) return;
  window.state.store(static_cast<uint32_t>(WindowState::Full), std::memory_order_release);
  if (has_helper_) {
    wake_helper();
  } else {
    unmap_full_windows();
  }
}

gm_status Journal::take_slot(RecordPlace* place) {
  for (;;) {
    const uint32_t window = current_.load(std::memory_order_acquire);
    if (window == kNoWindow) return stopped_status();
    const uint64_t slot = directory_[window].taken.fetch_add(1, std::memory_order_relaxed);
    if (slot < kRecordsPerWindow) {
      *place = {window, static_cast<uint32_t>(slot)};
      return GM_OK;
    }
    const gm_status status = turn_window(window);
    if (status != GM_OK) return status;
  }
}

void Journal::fill_slot(RecordPlace place, const gm_record& record) {
  gm_record* slot = windows_[place.window].records + place.slot;
  std::memcpy(slot, &record, offsetof(gm_record, commit));
  const uint64_t position = directory_[place.window].first_record + place.slot;
  const uint32_t commit = static_cast<uint32_t>(position & 0x7fffffff) + 1;
  __atomic_store_n(&slot->commit, commit, __ATOMIC_RELEASE);
  if (place.slot == kWakeSlot && has_helper_) wake_helper();
}

// Makes the prepared window current; reserves one itself where the helper is late.
gm_status Journal::turn_window(uint32_t full_window) {
  const std::lock_guard<std::mutex> lock(grow_mutex_);
  if (current_.load(std::memory_order_relaxed) != full_window) return GM_OK;
  if (prepared_ == kNoWindow) {
    const gm_status status = reserve_record_window(&prepared_);
    if (status != GM_OK) return stop_by_itself(status);
  }
  directory_[prepared_].state.store(static_cast<uint32_t>(WindowState::Open), std::memory_order_release);
  current_.store(prepared_, std::memory_order_release);
  prepared_ = kNoWindow;
  return GM_OK;
}

// grow_mutex_ is held; errno says why.
gm_status Journal::stop_by_itself(gm_status status) {
  errno_value_.store(errno, std::memory_order_relaxed);
  status_.store(status, std::memory_order_release);
  record_count_at_stop_.store(record_count(), std::memory_order_relaxed);
  current_.store(kNoWindow, std::memory_order_release);
  return status;
}

gm_status Journal::stopped_status() const {
  const gm_status status = this->status();
  return status == GM_OK ? static_cast<gm_status>(GM_NOT_RECORDING) : status;
}

uint64_t Journal::record_count() const {
  const uint32_t window = current_.load(std::memory_order_acquire);
  if (window == kNoWindow) return record_count_at_stop_.load(std::memory_order_relaxed);
  const uint64_t taken = directory_[window].taken.load(std::memory_order_relaxed);
  return directory_[window].first_record + (taken < kRecordsPerWindow ? taken : kRecordsPerWindow);
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

// ---- helper thread ----

void Journal::start_helper() {
  has_helper_ = start_quiet_thread(&helper_, "gpumem-journal", [this] { run_helper(); });
}

void Journal::stop_helper() {
  if (!has_helper_) return;
  {
    const std::lock_guard<std::mutex> lock(helper_mutex_);
    helper_ending_.store(true, std::memory_order_relaxed);
  }
  helper_signal_.notify_one();
  helper_.join();
}

void Journal::wake_helper() {
  {
    const std::lock_guard<std::mutex> lock(helper_mutex_);
    helper_wanted_ = true;
  }
  helper_signal_.notify_one();
}

void Journal::run_helper() {
  std::unique_lock<std::mutex> lock(helper_mutex_);
  for (;;) {
    helper_signal_.wait(lock, [this] { return helper_wanted_ || helper_ending_.load(std::memory_order_relaxed); });
    if (helper_ending_.load(std::memory_order_relaxed)) return;
    helper_wanted_ = false;
    lock.unlock();
    prepare_next_window();
    unmap_full_windows();
    lock.lock();
  }
}

// A failure here is no end: the appending thread tries again when the window is due.
void Journal::prepare_next_window() {
  uint32_t window;
  {
    const std::lock_guard<std::mutex> lock(grow_mutex_);
    const uint32_t current = current_.load(std::memory_order_relaxed);
    if (current == kNoWindow || prepared_ != kNoWindow) return;
    if (directory_[current].taken.load(std::memory_order_relaxed) <= kWakeSlot) return;
    if (reserve_record_window(&window) != GM_OK) return;
    prepared_ = window;
  }
  touch_window(windows_[window].records, helper_ending_);
}

// Called by the helper alone, or where there is none by whoever filled a window.
void Journal::unmap_full_windows() {
  const std::lock_guard<std::mutex> lock(grow_mutex_);
  bool all_unmapped = true;
  for (uint32_t window = first_mapped_; window < window_count_; ++window) {
    gm_record* records = windows_[window].records;
    if (records &&
        directory_[window].state.load(std::memory_order_acquire) >= static_cast<uint32_t>(WindowState::Full)) {
      windows_[window].records = nullptr;
      ::munmap(records, kRecordWindowBytes);
    }
    all_unmapped = all_unmapped && !windows_[window].records;
    if (all_unmapped) first_mapped_ = window + 1;
  }
}

// ---- the end ----

void Journal::close(const char* ended_by) {
  if (is_closed_.exchange(true)) return;
  stop_helper();
  {
    const std::lock_guard<std::mutex> lock(grow_mutex_);
    record_count_at_stop_.store(record_count(), std::memory_order_relaxed);
    current_.store(kNoWindow, std::memory_order_seq_cst);
  }
  wait_for_appends();
  detach_windows();
  std::strncpy(header_->ended_by, ended_by, sizeof header_->ended_by - 1);
  header_->state.store(static_cast<uint32_t>(JournalState::Closed), std::memory_order_release);
  detach_head();
  ::close(fd_);
}

// Nanoseconds as a rule: a thread between taking its slot and committing it.
void Journal::wait_for_appends() const {
  for (int attempt = 0; attempt < 100; ++attempt) {
    bool is_quiet = true;
    for (uint32_t window = 0; window < window_count_; ++window) {
      if (!windows_[window].records) continue;
      const uint64_t taken = directory_[window].taken.load(std::memory_order_relaxed);
      const uint64_t committed = directory_[window].committed.load(std::memory_order_acquire);
      const bool is_full =
          directory_[window].state.load(std::memory_order_acquire) == static_cast<uint32_t>(WindowState::Full);
      is_quiet = is_quiet && (taken < kRecordsPerWindow ? committed >= taken : is_full);
    }
    if (is_quiet) return;
    const timespec pause = {0, 200000};
    ::nanosleep(&pause, nullptr);
  }
}

// From here on a late thread writes into memory of no file: no fault where the sealer punched a hole on a full disk.
void Journal::detach_windows() {
  const std::lock_guard<std::mutex> entry_lock(entry_mutex_);
  const std::lock_guard<std::mutex> lock(grow_mutex_);
  for (uint32_t window = 0; window < window_count_; ++window) {
    if (windows_[window].records) replace_mapping(windows_[window].records, kRecordWindowBytes, 0);
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
  current_.store(kNoWindow, std::memory_order_relaxed);
  for (uint32_t window = first_mapped_; window < window_count_; ++window) {
    if (windows_[window].records) ::munmap(windows_[window].records, kRecordWindowBytes);
    windows_[window].records = nullptr;
  }
  if (entry_mapping_) ::munmap(entry_mapping_, kEntryWindowBytes);
  ::munmap(header_, head_bytes_);
  header_ = nullptr;
  ::close(fd_);
}

}  // namespace gpumem
