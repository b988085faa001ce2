// The journal's bytes: header, window directory, entries. All integers little-endian.
//
// Owns: the layout that journal.cpp writes and gpumem/trace/journal.py reads (a test compares both).
// Must not know: who records or why. Nothing here is allocated or computed.
//
//   offset 0              Header, 4 KiB
//   offset 4096           directory: window_capacity entries of 64 bytes (a sparse region)
//   offset windows_offset windows, in the order of the directory, page aligned
//
// A record window holds 64-byte gm_record slots; an entry window holds entries, each aligned to 8:
//   EntryHeader, then `bytes` payload bytes, then padding.
//
// Invariants:
//   window.first_record + slot = the record's event number (record windows follow one another without overlap)
//   a committed record's commit word = (its event number & 0x7fffffff) + 1
//   window.committed <= window.taken (taken may overshoot the capacity); FULL == (committed == capacity) for records
//   committed is exact in FULL windows and closed journals; before that it may lag: the commit words say
//   entries [0, used) of an entry window are complete; `used` is stored with release order after the bytes
//   state moves FREE -> OPEN -> FULL by the recorder alone, FULL -> SEALED by the sealer alone
#pragma once

#include <atomic>
#include <cstdint>

namespace gpumem {

constexpr char kJournalMagic[8] = {'G', 'P', 'U', 'M', 'E', 'M', 'J', '1'};
constexpr uint32_t kJournalVersion = 1;
constexpr uint32_t kByteOrderMark = 0x01020304;
constexpr uint64_t kHeaderBytes = 4096;
constexpr uint32_t kWindowCapacity = 65536;
constexpr uint64_t kRecordWindowBytes = 16ull << 20;
constexpr uint64_t kEntryWindowBytes = 4ull << 20;

enum class JournalState : uint32_t { Recording = 1, Closed = 2 };
enum class WindowState : uint32_t { Free = 0, Open = 1, Full = 2, Sealed = 3 };
enum class WindowKind : uint32_t { None = 0, Records = 1, Entries = 2, DriverRecords = 3 };

struct Header {
  char magic[8];                       // kJournalMagic
  uint32_t version;                    // kJournalVersion
  uint32_t byte_order;                 // kByteOrderMark as written by the recording machine
  uint8_t run_id[16];                  // names the run; its processes share it
  uint32_t pid;                        // the recording process
  uint32_t window_capacity;            // directory entries
  uint64_t windows_offset;             // file offset of the first window
  uint64_t clock_monotonic_ns;         // CLOCK_MONOTONIC when the journal was created: time zero of the trace
  uint64_t clock_realtime_ns;          // CLOCK_REALTIME at the same instant
  uint64_t process_start_ticks;        // /proc/<pid>/stat field 22: tells a reused pid apart
  std::atomic<uint32_t> state;         // JournalState
  std::atomic<uint32_t> window_count;  // directory entries in use, published with release order
  char ended_by[64];                   // why recording ended, 0-terminated, valid once state is Closed
  uint64_t part_published_bytes;       // end of the sealed part file known good (the sealer's)
};
static_assert(sizeof(Header) <= kHeaderBytes);

struct WindowEntry {
  std::atomic<uint32_t> state;      // WindowState
  uint32_t kind;                    // WindowKind
  uint64_t offset;                  // of the window in the file
  uint64_t bytes;                   // of the window
  uint64_t first_record;            // event number of slot 0 (record windows)
  std::atomic<uint64_t> taken;      // record windows: slots handed out; entry windows: bytes used (release)
  std::atomic<uint64_t> committed;  // record windows: records known to be committed
  uint64_t part_offset;             // SEALED: offset of the part's member data in the part file
  uint64_t part_bytes;              // SEALED: length of that member
};
static_assert(sizeof(WindowEntry) == 64);

enum class EntryKind : uint16_t {
  String = 1,   // payload: UTF-8 text (ids from 1)
  Code = 2,     // u32 file string, u32 qualified name string, u32 first line, u32 n, n bytes of line table (ids from 1)
  Stack = 3,    // u32 depth, then depth x (u32 code, u32 instruction byte offset), innermost first (ids from 1)
  Scope = 4,    // u32 parent scope, u32 name string (ids from 1)
  Stream = 5,   // u32 device, u32 0, u64 raw handle (ids from 1)
  Pool = 6,     // u64 first, u64 second (ids from 1)
  Thread = 7,   // u64 system thread id, then UTF-8 name (ids from 1; a later entry of the same id replaces it)
  Fact = 8,     // u32 key bytes, key, JSON text (id counts facts)
  Reading = 9,  // gm_reading
};

struct EntryHeader {
  uint32_t bytes;     // of the payload
  uint16_t kind;      // EntryKind
  uint16_t reserved;  // 0
  uint32_t id;        // within the kind
  uint32_t check;     // CRC-32 (zlib) of the payload
};
static_assert(sizeof(EntryHeader) == 16);

}  // namespace gpumem
