// The minimal reader: compiled once, as the sanitizers make it long.
#include "journal_reading.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

namespace {

constexpr uint64_t kSlots = gpumem::kRecordWindowBytes / sizeof(gm_record);

// The file, mapped while this lives; no bytes where it is too short for a journal.
class JournalFile {
 public:
  explicit JournalFile(const std::string& path) {
    const int fd = ::open(path.c_str(), O_RDONLY);
    struct stat status;
    if (fd >= 0 && ::fstat(fd, &status) == 0 && status.st_size >= 4096) {
      length_ = static_cast<size_t>(status.st_size);
      bytes_ = static_cast<const uint8_t*>(::mmap(nullptr, length_, PROT_READ, MAP_SHARED, fd, 0));
    }
    if (fd >= 0) ::close(fd);
  }
  ~JournalFile() {
    if (bytes_) ::munmap(const_cast<uint8_t*>(bytes_), length_);
  }
  JournalFile(const JournalFile&) = delete;
  JournalFile& operator=(const JournalFile&) = delete;

  const uint8_t* bytes() const { return bytes_; }
  size_t length() const { return length_; }
  const gpumem::Header* header() const { return reinterpret_cast<const gpumem::Header*>(bytes_); }
  const gpumem::WindowEntry* directory() const {
    return reinterpret_cast<const gpumem::WindowEntry*>(bytes_ + gpumem::kHeaderBytes);
  }
  std::vector<const gpumem::WindowEntry*> record_windows() const {
    std::vector<const gpumem::WindowEntry*> found;
    for (uint32_t i = 0; bytes_ && i < header()->window_count.load(); ++i) {
      if (directory()[i].kind == static_cast<uint32_t>(gpumem::WindowKind::Records)) found.push_back(&directory()[i]);
    }
    return found;
  }

 private:
  const uint8_t* bytes_ = nullptr;
  size_t length_ = 0;
};

void read_records(const gpumem::WindowEntry& window, const uint8_t* bytes, JournalContents* contents) {
  const uint64_t taken = window.taken.load();
  contents->states.push_back(static_cast<gpumem::WindowState>(window.state.load()));
  contents->committed_count += window.committed.load();
  uint64_t missing = 0;
  for (uint64_t slot = 0; slot < (taken < kSlots ? taken : kSlots); ++slot) {
    gm_record record;
    std::memcpy(&record, bytes + slot * sizeof record, sizeof record);
    if (record.commit == 0) {
      ++missing;
      continue;
    }
    contents->hole_count += missing;
    missing = 0;
    const uint64_t event = window.first_record + slot;
    if (record.commit != static_cast<uint32_t>(event & 0x7fffffff) + 1) ++contents->torn_count;
    contents->records.emplace_hint(contents->records.end(), event, record);
  }
}

void read_entries(const gpumem::WindowEntry& window, const uint8_t* bytes, JournalContents* contents) {
  for (uint64_t at = 0; at < window.taken.load();) {
    gpumem::EntryHeader head;
    std::memcpy(&head, bytes + at, sizeof head);
    const char* payload = reinterpret_cast<const char*>(bytes + at + sizeof head);
    contents->entries.push_back({head.kind, head.id, std::string(payload, head.bytes), head.check});
    at += (sizeof head + head.bytes + 7) / 8 * 8;
  }
}

}  // namespace

std::vector<std::string> JournalContents::payloads(gpumem::EntryKind kind) const {
  std::vector<std::string> found;
  for (const Entry& entry : entries) {
    if (entry.kind == static_cast<uint16_t>(kind)) found.push_back(entry.payload);
  }
  return found;
}

bool waits_until_full(const std::string& path, size_t record_window) {
  for (int attempt = 0; attempt < 240000; ++attempt) {
    if (read_states(path).at(record_window) == gpumem::WindowState::Full) return true;
    ::usleep(1000);
  }
  return false;
}

std::vector<gpumem::WindowState> read_states(const std::string& path) {
  std::vector<gpumem::WindowState> states;
  const JournalFile file(path);
  for (const gpumem::WindowEntry* window : file.record_windows()) {
    states.push_back(static_cast<gpumem::WindowState>(window->state.load()));
  }
  return states;
}

std::vector<gm_record> read_record_window(const std::string& path, size_t record_window) {
  const JournalFile file(path);
  std::vector<gm_record> records(kSlots);
  const uint64_t offset = file.record_windows().at(record_window)->offset;
  std::memcpy(records.data(), file.bytes() + offset, kSlots * sizeof(gm_record));
  return records;
}

JournalContents read_journal(const std::string& path) {
  JournalContents contents;
  const JournalFile file(path);
  if (!file.bytes()) return contents;
  const gpumem::Header* header = file.header();
  contents.is_whole = std::memcmp(header->magic, gpumem::kJournalMagic, 8) == 0;
  contents.is_closed = header->state.load() == static_cast<uint32_t>(gpumem::JournalState::Closed);
  contents.ended_by = header->ended_by;
  contents.pid = header->pid;
  for (uint32_t i = 0; contents.is_whole && i < header->window_count.load(); ++i) {
    const gpumem::WindowEntry& window = file.directory()[i];
    if (window.offset + window.bytes > file.length()) contents.is_whole = false;
    if (!contents.is_whole) break;
    if (window.kind == static_cast<uint32_t>(gpumem::WindowKind::Records)) {
      read_records(window, file.bytes() + window.offset, &contents);
    } else {
      read_entries(window, file.bytes() + window.offset, &contents);
    }
  }
  return contents;
}
