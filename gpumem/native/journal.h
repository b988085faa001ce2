// The journal file of one process: record slots and entries in shared windows that survive a kill.
//
// Owns: the file, its mappings, the window directory, the helper thread that reserves the next window.
// Must not know: CUDA, PyTorch, Python, what a record or an entry means.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

#include "check.h"
#include "gpumem.h"
#include "journal_file.h"
#include "journal_format.h"

namespace gpumem {

constexpr uint64_t kRecordsPerWindow = kRecordWindowBytes / sizeof(gm_record);

// A record's place: window of the directory and slot in it, and where that lies in memory.
struct RecordPlace {
  uint32_t window;    // directory index
  uint32_t slot;      // within the window
  gm_record* record;  // in the window's mapping; null: there is none
};
constexpr RecordPlace kNoPlace = {0, 0, nullptr};

// The record window that takes slots: which it is and where it is mapped, in one word, so that both are of one window.
// A mapping starts on a page and lies below 2^60: the address has room for the directory index.
class WindowInUse {
 public:
  WindowInUse() = default;  // none
  WindowInUse(uint32_t window, gm_record* records)
      : word_(reinterpret_cast<uintptr_t>(records) | (window & kLowBits) | static_cast<uint64_t>(window) >> 12 << 60) {
    GM_CHECK(this->window() == window && this->records() == records);
  }
  bool is_none() const { return word_ == 0; }
  uint32_t window() const { return static_cast<uint32_t>((word_ & kLowBits) | word_ >> 60 << 12); }
  gm_record* records() const { return reinterpret_cast<gm_record*>(word_ & ~(kLowBits | 0xfull << 60)); }

 private:
  static constexpr uint64_t kLowBits = 0xfff;

  uint64_t word_ = 0;
};
static_assert(kWindowCapacity <= 1 << 16);

// Whoever may change committed records in place, asked of a window whose records are all committed.
struct RecordHolder {
  void* holder;
  bool (*is_held)(const void* holder, uint32_t window);  // whether a record of the window may still be changed
  bool (*take_back)(void* holder, uint32_t window);      // whether from now on none is, be it held
};

// All appends may come from any number of threads at once. Appending to a journal that has stopped (disk full,
// closed) does nothing but return the status; a Journal must not be destroyed while a thread may still append.
class Journal {
 public:
  Journal() = default;
  // The holder lives as long as the journal.
  explicit Journal(RecordHolder holder) : holder_(holder) {}
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  // Creates `path` (which must not exist) and starts the helper thread. On failure the file is gone again.
  gm_status create(const char* path, const uint8_t* run_id, int32_t* errno_value);

  // Takes a slot, fills it and commits it; `position` (may be null) gets the event number.
  gm_status append(const gm_record& record, uint64_t* position);

  // The same in steps, for a record written where it stays. Between take and commit the caller does nothing but fill
  // the record, all but its commit word. The one locked instruction of a record is the one that takes its slot: nothing
  // counts commits, the helper thread looks for them once all slots are taken. A window with a record that is held open
  // cannot become FULL, so that such a record may be changed in place although it is committed. A hold that lasts on
  // when all of its window is committed is taken back. kNoPlace once the journal has stopped: see stopped_status().
  RecordPlace take() {
    const WindowInUse current = current_.load(std::memory_order_acquire);
    if (GM_UNLIKELY(current.is_none())) return kNoPlace;
    const uint64_t slot = directory_[current.window()].taken.fetch_add(1, std::memory_order_relaxed);
    if (GM_UNLIKELY(slot >= kRecordsPerWindow)) return take_in_next_window(current.window());
    return {current.window(), static_cast<uint32_t>(slot), current.records() + slot};
  }
  void commit(RecordPlace place) {
    const uint64_t position = directory_[place.window].first_record + place.slot;
    const uint32_t commit = static_cast<uint32_t>(position & 0x7fffffff) + 1;
    __atomic_store_n(&place.record->commit, commit, __ATOMIC_RELEASE);
    // Memory never written comes slowly, and the next locked instruction would wait for it.
    __builtin_prefetch(place.record + kRecordsAhead, 1);
    if (GM_UNLIKELY((place.slot + 1) % kWakeSlots == 0)) wake_helper();
  }

  // Appends one entry; it is readable once the call has returned.
  gm_status append_entry(EntryKind kind, uint32_t id, const void* bytes, uint32_t length);

  // Waits for appends under way, lets the mappings go and marks the file closed. Idempotent.
  void close(const char* ended_by);
  // For a forked child: lets go of the parent's file without a trace in it. The object stays unusable.
  void abandon();

  // False once the journal stopped (disk full, closed) or before create.
  bool is_open() const { return !current_.load(std::memory_order_relaxed).is_none(); }
  // GM_OK, or why the journal stopped by itself.
  gm_status status() const { return status_.load(std::memory_order_acquire); }
  // What an append returns once the journal is not open.
  [[gnu::cold]] gm_status stopped_status() const;
  int32_t errno_value() const { return errno_value_.load(std::memory_order_acquire); }
  uint64_t record_count() const;
  uint64_t reserved_bytes() const { return end_offset_.load(std::memory_order_relaxed); }

 private:
  static constexpr uint32_t kNoWindow = UINT32_MAX;
  // The helper thread is woken after so many slots, and starts on the next window when this many are taken. It touches
  // memory so many slots ahead: the first write to a page may take the kernel a thousand times as long as another.
  static constexpr uint32_t kWakeSlots = kRecordsPerWindow / 16;
  static constexpr uint32_t kPrepareSlots = kRecordsPerWindow / 4 * 3;
  static constexpr uint32_t kTouchSlots = kWakeSlots * 2;
  // So many records before its turn a slot's memory is called for.
  static constexpr uint32_t kRecordsAhead = 4;

  struct Window {
    gm_record* records;        // mapping of a record window, until it is FULL; null otherwise
    uint32_t committed_slots;  // so many slots from the first are known to be committed; the helper's
    uint64_t held_since_ns;    // when it was first seen held with all of them committed, 0: never; the helper's
    uint64_t touched_slots;    // so many slots from the first have their memory; the helper's
  };

  bool has_own_file();
  void close_own_file();
  gm_status prepare_file(const uint8_t* run_id);
  void write_header(const uint8_t* run_id);
  gm_status reserve_file(uint64_t offset, uint64_t bytes);
  gm_status reserve_window(WindowKind kind, uint64_t bytes, uint32_t* window, void** mapping);
  gm_status reserve_record_window(uint32_t* window);

  [[gnu::cold]] RecordPlace take_in_next_window(uint32_t window);
  bool find_committed(uint32_t window);
  void set_full(uint32_t window);
  gm_status turn_window(uint32_t full_window);
  gm_status stop_by_itself(gm_status status);

  gm_status append_oversize_entry(const EntryHeader& head, const void* bytes, uint64_t entry_bytes);
  gm_status turn_entry_window();

  void start_helper();
  void stop_helper();
  [[gnu::cold]] void wake_helper();
  void run_helper();
  void prepare_next_window();
  void touch_ahead();
  void touch_slots(uint32_t window);
  bool fill_windows();
  bool is_held(uint32_t window);
  void unmap_full_windows();

  void wait_for_appends();
  uint64_t count_committed(uint32_t window) const;
  void detach_windows();
  void detach_head();

  // What every record needs, side by side.
  WindowEntry* directory_ = nullptr;    // behind the header
  std::atomic<WindowInUse> current_{};  // none before create and once the journal stopped
  bool has_helper_ = false;             // set once, in create

  Window* windows_ = nullptr;  // one per directory entry
  RecordHolder holder_ = {nullptr, [](const void*, uint32_t) { return false; }, nullptr};
  std::string path_;                   // as given to create
  int fd_ = -1;                        // the file
  FileIdentity identity_ = {0, 0};     // what fd_ has to be
  uint64_t page_bytes_ = 0;            // of this machine
  uint64_t head_bytes_ = 0;            // header and directory
  Header* header_ = nullptr;           // mapping of head_bytes_
  std::atomic<bool> is_closed_{true};  // before create and after close

  std::atomic<gm_status> status_{GM_OK};           // why the journal stopped by itself
  std::atomic<int32_t> errno_value_{0};            // errno behind status_
  std::atomic<uint64_t> end_offset_{0};            // end of the last reserved window
  std::atomic<uint64_t> record_count_at_stop_{0};  // record_count() once no window is current

  std::mutex grow_mutex_;          // guards the members down to first_mapped_, and the directory's growth
  uint32_t window_count_ = 0;      // directory entries in use
  uint32_t prepared_ = kNoWindow;  // the next record window: reserved, still FREE
  uint64_t record_windows_ = 0;    // record windows reserved so far
  uint32_t first_mapped_ = 0;      // no record window below it is mapped; only the helper moves it

  std::mutex entry_mutex_;             // guards the members down to entry_mapping_
  uint32_t entry_window_ = kNoWindow;  // the open entry window
  uint8_t* entry_mapping_ = nullptr;   // its bytes

  std::mutex helper_mutex_;                 // guards helper_wanted_
  std::condition_variable helper_signal_;   // it changed, or helper_ending_ did
  bool helper_wanted_ = false;              // a window is due, or there is one to unmap
  std::atomic<bool> helper_ending_{false};  // the helper shall return, its work be left
  std::thread helper_;                      // run_helper
};

}  // namespace gpumem
