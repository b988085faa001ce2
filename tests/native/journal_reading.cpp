// The minimal reader: compiled once, as the sanitizers make it long.
#include "journal_reading.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

namespace {

constexpr uint64_t kSlots = gpumem::kRecordWindowBytes / sizeof(gm_record);

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
  for (int attempt = 0; attempt < 1000; ++attempt) {
    if (read_journal(path).states.at(record_window) == gpumem::WindowState::Full) return true;
    ::usleep(10000);
  }
  return false;
}

JournalContents read_journal(const std::string& path) {
  JournalContents contents;
  const int fd = ::open(path.c_str(), O_RDONLY);
  struct stat status;
  if (fd < 0 || ::fstat(fd, &status) != 0 || status.st_size < 4096) return contents;
  const auto length = static_cast<size_t>(status.st_size);
  void* mapping = ::mmap(nullptr, length, PROT_READ, MAP_SHARED, fd, 0);
  ::close(fd);
  const auto* bytes = static_cast<const uint8_t*>(mapping);
  const auto* header = reinterpret_cast<const gpumem::Header*>(bytes);
  const auto* directory = reinterpret_cast<const gpumem::WindowEntry*>(bytes + gpumem::kHeaderBytes);
  contents.is_whole = std::memcmp(header->magic, gpumem::kJournalMagic, 8) == 0;
  contents.is_closed = header->state.load() == static_cast<uint32_t>(gpumem::JournalState::Closed);
  contents.ended_by = header->ended_by;
  contents.pid = header->pid;
  for (uint32_t i = 0; contents.is_whole && i < header->window_count.load(); ++i) {
    const gpumem::WindowEntry& window = directory[i];
    if (window.offset + window.bytes > length) contents.is_whole = false;
    if (!contents.is_whole) break;
    if (window.kind == static_cast<uint32_t>(gpumem::WindowKind::Records)) {
      read_records(window, bytes + window.offset, &contents);
    } else {
      read_entries(window, bytes + window.offset, &contents);
    }
  }
  ::munmap(mapping, length);
  return contents;
}
