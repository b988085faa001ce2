#include "intern.h"

#include <cstring>
#include <memory>
#include <string>

#include "check.h"

namespace gpumem {

namespace {

constexpr uint64_t kFirstCapacity = 256;
constexpr uint32_t kAnyId = UINT32_MAX;
constexpr uint32_t kOrdinalLimit = UINT16_MAX;

uint64_t multiply_fold(uint64_t a, uint64_t b) {
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

// Two lanes that see the words crosswise, so that no one word that cancels a lane cancels both.
struct Mixer {
  uint64_t high = 0x9E3779B97F4A7C15u;
  uint64_t low = 0xD1B54A32D192ED03u;

  void add(uint64_t first, uint64_t second) {
    high = multiply_fold(high ^ first, 0xA24BAED4963EE407u ^ second) + second;
    low = multiply_fold(low ^ second, 0x9FB21C651E98DF25u ^ first) + first;
  }
};

void append_u32(std::string* bytes, uint32_t value) {
  bytes->append(reinterpret_cast<const char*>(&value), sizeof value);
}

}  // namespace

Hash128 hash_bytes(const void* bytes, size_t length) {
  const auto* at = static_cast<const uint8_t*>(bytes);
  Mixer mixer;
  uint64_t words[2];
  size_t left = length;
  for (; left >= sizeof words; left -= sizeof words, at += sizeof words) {
    std::memcpy(words, at, sizeof words);
    mixer.add(words[0], words[1]);
  }
  std::memset(words, 0, sizeof words);
  if (left) std::memcpy(words, at, left);
  mixer.add(words[0], words[1]);
  mixer.add(length, mixer.high ^ mixer.low);
  return {mixer.high, mixer.low};
}

// ---- IdTable ----

struct IdTable::Slot {
  std::atomic<uint64_t> high{0};  // key
  std::atomic<uint64_t> low{0};   // key
  std::atomic<uint32_t> id{0};    // stored last; 0 is an empty slot
};

struct IdTable::Slots {
  uint64_t capacity;  // a power of two
  Slot* slots;        // capacity of them, at most half in use
  Slots* smaller;     // what it replaced: a reader may still be in it
};

IdTable::IdTable() : slots_(make_slots(kFirstCapacity, nullptr)) {}

IdTable::~IdTable() {
  for (Slots* slots = slots_.load(); slots;) {
    Slots* smaller = slots->smaller;
    delete[] slots->slots;
    delete slots;
    slots = smaller;
  }
}

IdTable::Slots* IdTable::make_slots(uint64_t capacity, Slots* smaller) {
  auto cells = std::make_unique<Slot[]>(capacity);
  auto* slots = new Slots{capacity, cells.get(), smaller};
  cells.release();
  return slots;
}

uint32_t IdTable::find(Hash128 key) const {
  const Slots* slots = slots_.load(std::memory_order_acquire);
  for (uint64_t at = key.low;; ++at) {
    const Slot& slot = slots->slots[at & (slots->capacity - 1)];
    const uint32_t id = slot.id.load(std::memory_order_acquire);
    if (id == 0) return 0;
    if (slot.low.load(std::memory_order_relaxed) == key.low && slot.high.load(std::memory_order_relaxed) == key.high) {
      return id;
    }
  }
}

void IdTable::place(Slots* slots, Hash128 key, uint32_t id) {
  uint64_t at = key.low;
  while (slots->slots[at & (slots->capacity - 1)].id.load(std::memory_order_relaxed)) ++at;
  Slot& slot = slots->slots[at & (slots->capacity - 1)];
  slot.high.store(key.high, std::memory_order_relaxed);
  slot.low.store(key.low, std::memory_order_relaxed);
  slot.id.store(id, std::memory_order_release);
}

void IdTable::make_room() {
  Slots* slots = slots_.load(std::memory_order_relaxed);
  if ((uint64_t{count()} + 1) * 2 <= slots->capacity) return;
  Slots* larger = make_slots(slots->capacity * 2, slots);
  for (uint64_t i = 0; i < slots->capacity; ++i) {
    const Slot& slot = slots->slots[i];
    const uint32_t held = slot.id.load(std::memory_order_relaxed);
    if (held)
      place(larger, {slot.high.load(std::memory_order_relaxed), slot.low.load(std::memory_order_relaxed)}, held);
  }
  // All the smaller ones together are smaller than this one.
  slots_.store(larger, std::memory_order_release);
}

void IdTable::insert(Hash128 key, uint32_t id) {
  Slots* slots = slots_.load(std::memory_order_relaxed);
  const uint32_t count = this->count() + 1;
  GM_CHECK(uint64_t{count} * 2 <= slots->capacity);
  place(slots, key, id);
  count_.store(count, std::memory_order_relaxed);
}

// ---- Intern ----

uint32_t Intern::intern(IdTable& table, EntryKind kind, Hash128 key, const void* payload, size_t length,
                        uint32_t id_limit) {
  const std::lock_guard<std::mutex> lock(table.mutex());
  const uint32_t found = table.find(key);
  if (found) return found;
  const uint32_t count = table.count();
  if (count == id_limit || length > UINT32_MAX) return 0;
  table.make_room();  // before the entry is there: an id whose key were lost would be given out again
  if (journal_.append_entry(kind, count + 1, payload, static_cast<uint32_t>(length)) != GM_OK) return 0;
  table.insert(key, count + 1);
  return count + 1;
}

uint32_t Intern::string_id(std::string_view text) {
  const Hash128 key = hash_bytes(text.data(), text.size());
  const uint32_t found = strings_.find(key);
  return found ? found : intern(strings_, EntryKind::String, key, text.data(), text.size(), kAnyId);
}

uint32_t Intern::code_id(Hash128 key, const CodeText& code) {
  const uint32_t found = codes_.find(key);
  if (found) return found;
  std::string payload;
  payload.reserve(16 + code.line_table.size());
  append_u32(&payload, string_id(code.file));
  append_u32(&payload, string_id(code.name));
  append_u32(&payload, code.first_line);
  append_u32(&payload, static_cast<uint32_t>(code.line_table.size()));
  payload.append(code.line_table);
  return intern(codes_, EntryKind::Code, key, payload.data(), payload.size(), kAnyId);
}

uint32_t Intern::stack_id(Hash128 key, const StackFrame* innermost_first, uint32_t depth) {
  static_assert(sizeof(StackFrame) == 8);
  const uint32_t found = stacks_.find(key);
  if (found) return found;
  std::string payload;
  payload.reserve(4 + depth * sizeof(StackFrame));
  append_u32(&payload, depth);
  payload.append(reinterpret_cast<const char*>(innermost_first), depth * sizeof(StackFrame));
  return intern(stacks_, EntryKind::Stack, key, payload.data(), payload.size(), kAnyId);
}

uint32_t Intern::scope_id(uint32_t parent, std::string_view name) {
  const Hash128 name_hash = hash_bytes(name.data(), name.size());
  const uint64_t identity[3] = {name_hash.high, name_hash.low, parent};
  const Hash128 key = hash_bytes(identity, sizeof identity);
  const uint32_t found = scopes_.find(key);
  if (found) return found;
  const uint32_t payload[2] = {parent, string_id(name)};
  return intern(scopes_, EntryKind::Scope, key, payload, sizeof payload, kAnyId);
}

uint16_t Intern::stream_ordinal(uint32_t device, uint64_t handle) {
  const uint64_t payload[2] = {device, handle};
  const Hash128 key = hash_bytes(payload, sizeof payload);
  const uint32_t found = streams_.find(key);
  if (found) return static_cast<uint16_t>(found);
  return static_cast<uint16_t>(intern(streams_, EntryKind::Stream, key, payload, sizeof payload, kOrdinalLimit));
}

uint16_t Intern::pool_ordinal(uint64_t first, uint64_t second) {
  const uint64_t payload[2] = {first, second};
  const Hash128 key = hash_bytes(payload, sizeof payload);
  const uint32_t found = pools_.find(key);
  if (found) return static_cast<uint16_t>(found);
  return static_cast<uint16_t>(intern(pools_, EntryKind::Pool, key, payload, sizeof payload, kOrdinalLimit));
}

uint16_t Intern::next_thread_ordinal() {
  const uint32_t ordinal = thread_count_.fetch_add(1, std::memory_order_relaxed) + 1;
  return static_cast<uint16_t>(ordinal <= kOrdinalLimit ? ordinal : 0);
}

}  // namespace gpumem
