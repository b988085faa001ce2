// Ids for what events repeat: strings, code objects, stacks, scopes, streams, pools.
//
// Owns: the tables from 128-bit hash to id, and the entry in the journal that gives an id its meaning; the entry
// is in the journal before the id is returned. Must not know: how stacks are walked, what a record is.
//
// Keys are 128-bit hashes; two different things with one hash are taken for one (never, in practice).
// Looking an id up takes no lock and writes nothing; a miss takes the table's lock.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string_view>

#include "journal.h"

namespace gpumem {

struct Hash128 {
  uint64_t high;
  uint64_t low;
};

Hash128 hash_bytes(const void* bytes, size_t length);

// Hash -> id (from 1); find without lock, insert under a lock of the caller's.
class IdTable {
 public:
  IdTable();
  ~IdTable();
  IdTable(const IdTable&) = delete;
  IdTable& operator=(const IdTable&) = delete;

  // 0 when the key is not there.
  uint32_t find(Hash128 key) const;
  // Makes room for one more key, so that its insert needs no memory. Throws std::bad_alloc.
  void make_room();
  void insert(Hash128 key, uint32_t id);
  uint32_t count() const { return count_.load(std::memory_order_relaxed); }
  std::mutex& mutex() { return mutex_; }

 private:
  struct Slot;
  struct Slots;
  static Slots* make_slots(uint64_t capacity, Slots* smaller);
  static void place(Slots* slots, Hash128 key, uint32_t id);

  std::atomic<Slots*> slots_;       // replaced when it grows; the old one stays for readers under way
  std::atomic<uint32_t> count_{0};  // keys held
  std::mutex mutex_;                // for writers
};

// One code object's identity for readers of the trace.
struct CodeText {
  std::string_view file;        // UTF-8
  std::string_view name;        // qualified name, UTF-8
  uint32_t first_line;          // co_firstlineno
  std::string_view line_table;  // co_linetable, as it is
};

// One frame of a stack: what a Stack entry holds per frame.
struct StackFrame {
  uint32_t code;                // id of code_id()
  uint32_t instruction_offset;  // bytes from the code's first instruction
};

// Ids belong to one Intern (one journal): keep none across two. 0 means the journal would not take the entry.
class Intern {
 public:
  explicit Intern(Journal& journal) : journal_(journal) {}
  Intern(const Intern&) = delete;
  Intern& operator=(const Intern&) = delete;

  uint32_t string_id(std::string_view text);

  // A key is a hash of what the code or stack says; a stack names codes that have ids already.
  uint32_t code_id(Hash128 key, const CodeText& code);
  uint32_t stack_id(Hash128 key, const StackFrame* innermost_first, uint32_t depth);
  uint32_t stack_count() const { return stacks_.count(); }

  uint32_t scope_id(uint32_t parent, std::string_view name);
  // Ordinals from 1; 0 once 65,535 are taken.
  uint16_t stream_ordinal(uint32_t device, uint64_t handle);
  uint16_t pool_ordinal(uint64_t first, uint64_t second);
  uint16_t next_thread_ordinal();

 private:
  uint32_t intern(IdTable& table, EntryKind kind, Hash128 key, const void* payload, size_t length, uint32_t id_limit);

  Journal& journal_;
  IdTable strings_;
  IdTable codes_;
  IdTable stacks_;
  IdTable scopes_;
  IdTable streams_;
  IdTable pools_;
  std::atomic<uint32_t> thread_count_{0};  // ordinals given out
};

}  // namespace gpumem
