// A minimal reader of a journal for the native tests: every committed record and every entry, checked as they lie.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "gpumem.h"
#include "journal_format.h"

struct Entry {
  uint16_t kind;
  uint32_t id;
  std::string payload;
  uint32_t check;  // as the journal has it
};

struct JournalContents {
  bool is_whole = false;                    // header and directory make sense
  bool is_closed = false;                   // the recorder ended by itself
  std::string ended_by;                     // why
  uint32_t pid = 0;                         // the recorder's
  std::map<uint64_t, gm_record> records;    // by event number
  uint64_t hole_count = 0;                  // slots handed out without a record, before the last record
  uint64_t torn_count = 0;                  // records whose commit word is not their place's
  std::vector<Entry> entries;               // in the order of the file
  std::vector<gpumem::WindowState> states;  // of the record windows
  uint64_t committed_count = 0;             // sum of the record windows' counters

  // What the entries of a kind hold.
  std::vector<std::string> payloads(gpumem::EntryKind kind) const;
};

// Whether a record window is FULL, at the latest after some seconds: a thread of the journal's looks for that.
bool waits_until_full(const std::string& path, size_t record_window);
// States of the record windows, without their records.
std::vector<gpumem::WindowState> read_states(const std::string& path);
// All slots of a record window as they lie in the file.
std::vector<gm_record> read_record_window(const std::string& path, size_t record_window);
// What lies in the file now; nothing is whole where it is no journal.
JournalContents read_journal(const std::string& path);
