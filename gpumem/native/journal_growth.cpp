// How a journal comes into being and grows: the file's head, its windows, the thread that reserves the next one.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <utility>

#include "check.h"
#include "journal.h"
#include "journal_file.h"

namespace gpumem {

namespace {

constexpr std::chrono::milliseconds kNoPause{0};
constexpr std::chrono::milliseconds kFirstPause{1};
constexpr std::chrono::milliseconds kLongestPause{1000};
constexpr uint64_t kHoldGraceNs = 100'000'000;

}  // namespace

// ---- creation and growth ----

gm_status Journal::create(const char* path, const uint8_t* run_id, int32_t* errno_value) {
  GM_CHECK(fd_ < 0);
  path_ = path;  // first: from the file's creation on nothing asks for memory of the program's
  fd_ = open_above_streams(path, O_RDWR | O_CREAT | O_EXCL);
  if (fd_ < 0) {
    *errno_value = errno;
    return errno == ENOSPC || errno == EDQUOT ? GM_DISK_FULL : GM_CANNOT_CREATE;
  }
  identity_ = read_file_identity(fd_);
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

// Opens the file anew where the program has closed the descriptor under us.
bool Journal::has_own_file() {
  if (is_same_file(fd_, identity_)) return true;
  const int fd = open_above_streams(path_.c_str(), O_RDWR);
  if (fd >= 0 && is_same_file(fd, identity_)) {
    fd_ = fd;
    return true;
  }
  if (fd >= 0) ::close(fd);
  errno = EBADF;
  return false;
}

void Journal::close_own_file() {
  if (is_same_file(fd_, identity_)) ::close(fd_);
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
  current_.store({first, windows_[first].records}, std::memory_order_release);
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
  if (!has_own_file()) return GM_CANNOT_MAP;
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

// ---- helper thread ----

void Journal::start_helper() {
  helper_wanted_ = true;  // the first slots' memory
  has_helper_ = start_quiet_thread(&helper_, "gpumem-journal", [this] { run_helper(); });
}

// Once it has returned nobody does the helper's work, nor, where there is none, whoever would.
void Journal::stop_helper() {
  {
    const std::lock_guard<std::mutex> lock(helper_mutex_);
    helper_ending_.store(true, std::memory_order_relaxed);
  }
  if (!has_helper_) return;
  helper_signal_.notify_one();
  helper_.join();
}

// Where there is no helper, whoever would have woken it does its work.
void Journal::wake_helper() {
  {
    const std::lock_guard<std::mutex> lock(helper_mutex_);
    helper_wanted_ = has_helper_;
    if (!has_helper_ && !helper_ending_.load(std::memory_order_relaxed)) {
      fill_windows();
      unmap_full_windows();
    }
  }
  helper_signal_.notify_one();
}

// A window may miss a record's commit or be held: it is looked at again, soon and then ever more seldom.
void Journal::run_helper() {
  std::chrono::milliseconds pause = kNoPause;
  const auto is_due = [this] { return helper_wanted_ || helper_ending_.load(std::memory_order_relaxed); };
  std::unique_lock<std::mutex> lock(helper_mutex_);
  for (;;) {
    if (pause == kNoPause) {
      helper_signal_.wait(lock, is_due);
    } else {
      helper_signal_.wait_until(lock, std::chrono::system_clock::now() + pause, is_due);
    }
    if (helper_ending_.load(std::memory_order_relaxed)) return;
    const bool is_wanted = std::exchange(helper_wanted_, false);
    lock.unlock();
    prepare_next_window();
    touch_ahead();
    const bool is_done = fill_windows();
    unmap_full_windows();
    pause = is_done ? kNoPause : is_wanted ? kFirstPause : std::min(pause * 2, kLongestPause);
    lock.lock();
  }
}

// A failure here is no end: the appending thread tries again when the window is due.
void Journal::prepare_next_window() {
  uint32_t window;
  const std::lock_guard<std::mutex> lock(grow_mutex_);
  const WindowInUse current = current_.load(std::memory_order_relaxed);
  if (current.is_none() || prepared_ != kNoWindow) return;
  if (directory_[current.window()].taken.load(std::memory_order_relaxed) < kPrepareSlots) return;
  if (reserve_record_window(&window) == GM_OK) prepared_ = window;
}

void Journal::touch_ahead() {
  WindowInUse current;
  uint32_t prepared;
  {
    const std::lock_guard<std::mutex> lock(grow_mutex_);
    current = current_.load(std::memory_order_relaxed);
    prepared = prepared_;
  }
  if (current.is_none()) return;
  touch_slots(current.window());
  if (prepared != kNoWindow) touch_slots(prepared);
}

// Faults the pages of the next slots in, one at a time, so that nobody waits long for the address space. The commit
// word is written atomically with its own value: the slots may already be in use.
void Journal::touch_slots(uint32_t window) {
  constexpr uint64_t kStride = 4096 / sizeof(gm_record);
  const uint64_t taken = directory_[window].taken.load(std::memory_order_relaxed);
  const uint64_t end = std::min(taken + kTouchSlots, kRecordsPerWindow);
  uint64_t& slot = windows_[window].touched_slots;
  for (slot = std::max(slot, taken / kStride * kStride); slot < end && !helper_ending_.load(std::memory_order_relaxed);
       slot += kStride) {
    __atomic_fetch_or(&windows_[window].records[slot].commit, 0u, __ATOMIC_RELAXED);
  }
}

// Makes the windows FULL that may be; false when one is left whose slots are all taken. Like unmap_full_windows called
// by the helper alone, or where there is none with helper_mutex_ held.
bool Journal::fill_windows() {
  uint32_t count;
  {
    const std::lock_guard<std::mutex> lock(grow_mutex_);
    count = window_count_;
  }
  bool are_all_full = true;
  for (uint32_t window = first_mapped_; window < count; ++window) {
    const bool is_open =
        directory_[window].state.load(std::memory_order_relaxed) == static_cast<uint32_t>(WindowState::Open);
    if (!windows_[window].records || !is_open) continue;
    if (directory_[window].taken.load(std::memory_order_relaxed) < kRecordsPerWindow) continue;
    // In this order: once all of a window is committed every hold on a record of it is to be seen.
    if (find_committed(window) && !is_held(window)) {
      set_full(window);
    } else {
      are_all_full = false;
    }
  }
  return are_all_full;
}

// Takes holds back that last: a source in the midst of its two halves lets go within microseconds where it is not kept
// from running.
bool Journal::is_held(uint32_t window) {
  if (!holder_.is_held(holder_.holder, window)) return false;
  const uint64_t now_ns = clock_ns(CLOCK_MONOTONIC);
  uint64_t& since_ns = windows_[window].held_since_ns;
  if (since_ns == 0) since_ns = now_ns;
  return now_ns - since_ns < kHoldGraceNs || !holder_.take_back(holder_.holder, window);
}

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

}  // namespace gpumem
