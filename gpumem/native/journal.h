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
#include <thread>

#include "gpumem.h"
#include "journal_format.h"

namespace gpumem {

constexpr uint64_t kRecordsPerWindow = kRecordWindowBytes / sizeof(gm_record);

// CRC-32 as zlib computes it.
uint32_t crc32(const void* bytes, size_t length);

// A record's place: window of the directory and slot in it.
struct RecordPlace {
  uint32_t window;  // directory index
  uint32_t slot;    // within the window
};

// All appends may come from any number of threads at once. Appending to a journal that has stopped (disk full,
// closed) does nothing but return the status; a Journal must not be destroyed while a thread may still append.
class Journal {
 public:
  Journal() = default;
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  // Creates `path` (which must not exist) and starts the helper thread. On failure the file is gone again.
  gm_status create(const char* path, const uint8_t* run_id, int32_t* errno_value);

  // Takes a slot, fills it, commits and counts it; `position` (may be null) gets the event number.
  gm_status append(const gm_record& record, uint64_t* position);
  // As append, but does not count the record: its window cannot become FULL, so that the record may still be
  // changed in place, until settle().
  gm_status append_unsettled(const gm_record& record, RecordPlace* place);
  gm_record* unsettled_record(RecordPlace place) { return windows_[place.window].records + place.slot; }
  void settle(RecordPlace place);

  // Appends one entry; it is readable once the call has returned.
  gm_status append_entry(EntryKind kind, uint32_t id, const void* bytes, uint32_t length);

  // Waits for appends under way, lets the mappings go and marks the file closed. Idempotent.
  void close(const char* ended_by);
  // For a forked child: lets go of the parent's file without a trace in it. The object stays unusable.
  void abandon();

  // False once the journal stopped (disk full, closed) or before create.
  bool is_open() const { return current_.load(std::memory_order_relaxed) != kNoWindow; }
  // GM_OK, or why the journal stopped by itself.
  gm_status status() const { return status_.load(std::memory_order_acquire); }
  int32_t errno_value() const { return errno_value_.load(std::memory_order_acquire); }
  uint64_t record_count() const;
  uint64_t reserved_bytes() const { return end_offset_.load(std::memory_order_relaxed); }

 private:
  static constexpr uint32_t kNoWindow = UINT32_MAX;

  struct Window {
    gm_record* records = nullptr;  // mapping of a record window; valid until it is FULL
  };

  gm_status open_file(const char* path);
  gm_status map_head();
  gm_status prepare_file(const uint8_t* run_id);
  void write_header(const uint8_t* run_id);
  gm_status take_slot(RecordPlace* place);
  bool fill_slot(RecordPlace place, const gm_record& record);
  gm_status turn_window(uint32_t full_window);
  gm_status reserve_window(WindowKind kind, uint64_t bytes, uint32_t* window, void** mapping);
  gm_status reserve_record_window(uint32_t* window);
  gm_status reserve_bytes(uint64_t offset, uint64_t bytes);
  gm_status open_entry_window(uint64_t bytes);
  void retire_entry_window();
  void stop_by_itself(gm_status status);
  void wake_helper();
  void run_helper();
  void start_helper();
  void stop_helper();
  void unmap_full_windows();
  void wait_for_appends() const;
  void detach_mapping(void* mapping, uint64_t bytes);

  int fd_ = -1;
  Header* header_ = nullptr;          // first mapping: header and directory
  WindowEntry* directory_ = nullptr;  // behind the header
  Window* windows_ = nullptr;         // one per directory entry, lazily touched memory

  std::atomic<uint32_t> current_{kNoWindow};     // open record window
  std::atomic<gm_status> status_{GM_OK};         // why the journal stopped by itself
  std::atomic<int32_t> errno_value_{0};          // errno behind status_
  std::atomic<uint64_t> end_offset_{0};          // end of the last reserved window
  std::atomic<uint64_t> closed_record_count_{0}; // record_count() once no window is current

  std::mutex grow_mutex_;            // directory growth: the members down to record_windows_
  uint32_t window_count_ = 0;        // directory entries in use
  uint32_t prepared_ = kNoWindow;    // next record window, reserved but still FREE
  uint64_t record_windows_ = 0;      // record windows reserved so far
  uint32_t first_mapped_ = 0;        // no record window below it is mapped (helper's own)

  std::mutex entry_mutex_;               // the members down to entry_mapping_bytes_
  uint32_t entry_window_ = kNoWindow;    // open entry window
  uint8_t* entry_mapping_ = nullptr;     // its bytes
  uint64_t entry_mapping_bytes_ = 0;     // their number

  std::mutex helper_mutex_;                // helper_wanted_, helper_ending_
  std::condition_variable helper_signal_;  // signalled with either
  bool helper_wanted_ = false;             // a window is due, or one to unmap
  bool helper_ending_ = false;             // the helper shall return
  std::thread helper_;
};

}  // namespace gpumem
