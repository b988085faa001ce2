#include "walker.h"

#include <pthread.h>

#include <atomic>
#include <cstdio>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include "check.h"
#include "code_watch.h"
#include "python_layout.h"

namespace gpumem {

namespace {

enum class WalkerState : int { NotStarted, On, Off };

PythonLayout g_layout;                                      // written before g_state says On
Python g_python;                                            // likewise
std::atomic<WalkerState> g_state{WalkerState::NotStarted};  // Off is final

// Frames of both kinds, shown and hidden: a call from C into Python leaves one of each.
constexpr uint32_t kFramesMax = 2 * kStackDepthMax;

// Longer names and line tables are cut: an entry must fit the journal's windows.
constexpr size_t kTextCharactersMax = 1 << 16;
constexpr size_t kLineTableBytesMax = 1 << 21;

// Odd numbers without pattern.
constexpr uint64_t kCodeKey = 0xbb17e8f73e0dfdd1;
constexpr uint64_t kPlaceKey = 0xe00f92d77e096be5;
constexpr uint64_t kNameKey = 0xfe2bc67591436d45;
constexpr uint64_t kTableKey = 0x49be03aad9beee39;
constexpr uint64_t kHighFactor = 0x8d6a1fa32be52ea3;
constexpr uint64_t kLowFactor = 0xc94b7c259f52f387;

struct Product {
  uint64_t high;
  uint64_t low;
};

Product multiply(uint64_t left, uint64_t right) {
  const unsigned __int128 product = static_cast<unsigned __int128>(left) * right;
  return {static_cast<uint64_t>(product >> 64), static_cast<uint64_t>(product)};
}

bool is_on() {
  return g_state.load(std::memory_order_acquire) == WalkerState::On;
}

uint64_t mix(uint64_t word) {
  word *= kHighFactor;
  return word ^ word >> 32;
}

// A hash that grows frame by frame.
struct StackHash {
  uint64_t high = 0;
  uint64_t low = 0;

  void add(StackHash frame) {
    high = (high + frame.high) * kHighFactor;
    low = (low + frame.low) * kLowFactor;
  }
  // Spreads what each half holds over both; different halves stay different.
  Hash128 finish() const {
    const uint64_t first = low ^ mix(high);
    const uint64_t second = high ^ mix(first);
    return {second, first ^ mix(second)};
  }
};

constexpr uint64_t kNotHashed = UINT64_MAX;

// A str's or bytes object's own hash lies right behind its length; kNotHashed while nobody has asked for it.
uint64_t own_hash(const char* object, uint32_t length_offset) {
  return load<uint64_t>(object, length_offset + static_cast<uint32_t>(sizeof(uint64_t)));
}

// Hashes the frames of one walk.
//
// Addresses alone do not tell code objects apart: of functions made and dropped in a loop up to 7 in 10 find code
// object, file name, qualified name and line table where another function's were. From 3.12 on every code object
// has a version number of its own, which with the address tells all apart; without one their texts' own hashes do.
template <bool kVersioned>
class FrameHasher {
 public:
  [[gnu::always_inline]] StackHash frame(const char* code, uint64_t instruction_offset) {
    if (!kVersioned) return hash_by_text(code, instruction_offset);
    const uint64_t version = load<uint32_t>(code, g_layout.code_version);
    if (version == 0) return hash_apart(code, instruction_offset);
    const Product object = multiply(word(code) ^ kCodeKey, (version << 32 | instruction_offset) ^ kPlaceKey);
    return {object.high, object.low};
  }
  // False when a frame's text had no hash yet: what came out then stands for nothing.
  bool is_settled() const { return is_settled_; }

 private:
  static uint64_t word(const char* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

  // Out of line: the registers it needs would cost the versioned way more than the walk itself.
  [[gnu::noinline]] StackHash hash_apart(const char* code, uint64_t instruction_offset) {
    return hash_by_text(code, instruction_offset);
  }

  [[gnu::always_inline]] StackHash hash_by_text(const char* code, uint64_t instruction_offset) {
    const uint64_t first_line = load<uint32_t>(code, g_layout.code_first_line);
    const uint64_t file = own_hash(load<const char*>(code, g_layout.code_file), g_layout.text_length);
    const uint64_t name = own_hash(load<const char*>(code, g_layout.code_name), g_layout.text_length);
    const uint64_t table = own_hash(load<const char*>(code, g_layout.code_line_table), g_layout.bytes_length);
    is_settled_ = is_settled_ && file != kNotHashed && name != kNotHashed && table != kNotHashed;
    const Product object = multiply(word(code) ^ kCodeKey, (first_line << 32 | instruction_offset) ^ kPlaceKey);
    const Product texts = multiply(name ^ kNameKey, table ^ kTableKey);
    return {object.high + texts.low + file, object.low + texts.high + mix(file)};
  }

  bool is_settled_ = true;  // every text so far had its hash
};

// The calling thread's innermost frame; null without Python, in a sub-interpreter and while finalising.
[[gnu::always_inline]] inline const char* current_frame() {
  if (!g_python.is_alive()) return nullptr;
  const char* holder = g_python.find_holder_state();
  const bool is_own = g_python.is_holder_own && holder != nullptr;
  const char* state = is_own ? holder : g_python.find_thread_state();
  if (state == nullptr || load<const char*>(state, g_layout.thread_interpreter) != g_python.main_interpreter) {
    return nullptr;
  }
  // Another state of this thread may be the one that runs, of a sub-interpreter. With the lock released nothing says
  // which, so then there must be no sub-interpreter at all.
  if (holder != state && g_python.find_interpreter_head() != g_python.main_interpreter) {
    return nullptr;
  }
  return innermost_frame(state, g_layout.thread_frame, g_layout.holder_frame);
}

// Calls visit(code, instruction_offset) for the frames that sys._getframe would show, innermost first; their number.
// To take away a tag that is not there costs a twentieth of CPython 3.11's walks, which nothing remembered shortens.
template <bool kMayBeTagged = true, typename Visit>
uint32_t visit_frames(const char* frame, Visit visit) {
  uint32_t depth = 0;
  for (uint32_t seen = 0; frame != nullptr && depth < kStackDepthMax && seen < kFramesMax;
       ++seen, frame = load<const char*>(frame, g_layout.frame_previous)) {
    const uint8_t owner = load<uint8_t>(frame, g_layout.frame_owner);
    if (owner >= kFirstHiddenOwner) continue;
    const char* code = kMayBeTagged ? g_layout.code_of(frame) : load<const char*>(frame, g_layout.frame_code);
    const char* instruction = load<const char*>(frame, g_layout.frame_instruction);
    const int64_t offset = instruction - (code + g_layout.code_start);
    // A frame still being set up: its locals are not there yet. Generators are set up before they can run.
    const int64_t first_traceable = load<int32_t>(code, g_layout.code_first_traceable);
    if (owner != kOwnedByGenerator && offset < first_traceable * int64_t{kCodeUnitBytes}) continue;
    visit(code, static_cast<uint32_t>(offset));
    ++depth;
  }
  return depth;
}

// Hashes the frames as they lie, without a look at their code objects, which would cost a cache line each: what the
// instruction's address and the owner do not decide of a frame, its code object does, and while no code object has
// ended (`generation`) an address stands for one of them.
Hash128 hash_chain(const char* frame, uint64_t generation) {
  const uint32_t previous = g_layout.frame_previous, instruction = g_layout.frame_instruction;
  const uint32_t owner = g_layout.frame_owner;
  StackHash sum = {generation * kCodeKey, generation * kPlaceKey};
  uint32_t seen = 0;
  for (; frame != nullptr && seen < kFramesMax; ++seen, frame = load<const char*>(frame, previous)) {
    const uint64_t place = load<uint64_t>(frame, instruction) ^ static_cast<uint64_t>(load<uint8_t>(frame, owner))
                                                                    << 56;
    sum.add({place, place});
  }
  return sum.finish();
}

// What a cache is asked by.
struct CacheKey {
  Hash128 hash;
  bool is_settled;  // false: the hash stands for nothing
};

template <bool kVersioned>
CacheKey hash_frames(const char* frame) {
  FrameHasher<kVersioned> hasher;
  StackHash sum;
  // Code objects had versions before frames had tags.
  visit_frames<kVersioned>(frame, [&](const char* code, uint32_t offset) { sum.add(hasher.frame(code, offset)); });
  return {sum.finish(), hasher.is_settled()};
}

bool has_versions() {
  return g_layout.code_version != 0;
}

CacheKey key_of_stack(const char* innermost) {
  return has_versions() ? hash_frames<true>(innermost) : hash_frames<false>(innermost);
}

CacheKey key_of_code(const char* code) {
  if (has_versions()) {
    FrameHasher<true> hasher;
    return {hasher.frame(code, 0).finish(), hasher.is_settled()};
  }
  FrameHasher<false> hasher;
  return {hasher.frame(code, 0).finish(), hasher.is_settled()};
}

uint32_t find_cached(const IdCache& cache, CacheKey key) {
  return key.is_settled ? cache.find(key.hash) : 0;
}

void remember(IdCache& cache, CacheKey key, uint32_t id) {
  if (key.is_settled && id != 0) cache.insert(key.hash, id);
}

// Has CPython compute and keep the hashes of a code object's texts, as a dict's first look at them would: it writes
// one word, the same whoever comes first. Not of a str of another type, whose hash may be anyone's code.
void settle_texts(const char* code) {
  for (const uint32_t offset : {g_layout.code_file, g_layout.code_name}) {
    const char* text = load<const char*>(code, offset);
    const bool is_plain = is_plain_text(g_python, text) && read_text(g_layout, text).width != 0;
    if (is_plain && own_hash(text, g_layout.text_length) == kNotHashed) g_python.hash_object(text);
  }
  const char* table = load<const char*>(code, g_layout.code_line_table);
  if (own_hash(table, g_layout.bytes_length) == kNotHashed) g_python.hash_object(table);
}

std::string text_of(const char* text) {
  RawText raw = read_text(g_layout, text);
  if (raw.count > kTextCharactersMax) raw.count = kTextCharactersMax;
  return to_utf8(raw);
}

// Id of a code object by what it says: the same text has one id, wherever it lay in memory.
uint32_t resolve_code(Intern& intern, const char* code) {
  const std::string file = text_of(load<const char*>(code, g_layout.code_file));
  const std::string name = text_of(load<const char*>(code, g_layout.code_name));
  const RawBytes table = read_bytes(g_layout, load<const char*>(code, g_layout.code_line_table));
  const size_t table_bytes = table.length < kLineTableBytesMax ? table.length : kLineTableBytesMax;
  const CodeText text = {file, name, load<uint32_t>(code, g_layout.code_first_line), {table.start, table_bytes}};
  const Hash128 parts[] = {hash_bytes(file.data(), file.size()), hash_bytes(name.data(), name.size()),
                           hash_bytes(table.start, table_bytes), Hash128{0, text.first_line}};
  return intern.code_id(hash_bytes(parts, sizeof parts), text);
}

uint32_t find_code_id(Intern& intern, WalkerCaches& caches, const char* code) {
  const CacheKey key = key_of_code(code);
  uint32_t id = find_cached(caches.codes, key);
  if (id == 0) {
    id = resolve_code(intern, code);
    remember(caches.codes, key, id);
  }
  return id;
}

// Id of the stack above `frame` by what it says; 0 when the journal or memory takes no more.
uint32_t resolve_stack(Intern& intern, WalkerCaches& caches, const char* frame) try {
  std::vector<StackFrame> frames;
  bool is_complete = true;
  visit_frames(frame, [&](const char* code, uint32_t offset) {
    const uint32_t id = find_code_id(intern, caches, code);
    is_complete = is_complete && id != 0;
    frames.push_back({id, offset});
  });
  if (!is_complete || frames.empty()) return 0;
  const Hash128 content = hash_bytes(frames.data(), frames.size() * sizeof(StackFrame));
  return intern.stack_id(content, frames.data(), static_cast<uint32_t>(frames.size()));
} catch (const std::bad_alloc&) {
  return 0;
}

// Out of line, as is what follows, so that a remembered chain pays for none of it.
[[gnu::noinline]] uint32_t find_stack_id(Intern& intern, WalkerCaches& caches, const char* frame) {
  CacheKey key = key_of_stack(frame);
  uint32_t id = find_cached(caches.stacks, key);
  if (id == 0 && !key.is_settled) {
    visit_frames(frame, [](const char* code, uint32_t) { settle_texts(code); });
    key = key_of_stack(frame);
    id = find_cached(caches.stacks, key);
  }
  if (id == 0) {
    id = resolve_stack(intern, caches, frame);
    remember(caches.stacks, key, id);
  }
  return id;
}

uint32_t find_chain_id(Intern& intern, WalkerCaches& caches, ChainMemo& memo, const char* frame, uint64_t generation) {
  const Hash128 chain = hash_chain(frame, generation);
  uint32_t id = caches.chains.find(chain);
  if (id == 0) {
    id = find_stack_id(intern, caches, frame);
    if (id != 0) caches.chains.insert(chain, id);
  }
  if (id != 0) memo.keep(g_layout, frame, generation, id);
  return id;
}

// Watching is CPython's to arrange, under the lock and for the interpreter that runs.
bool may_watch_code() {
  const char* state = g_python.find_thread_state();
  return g_python.is_holder_own && state != nullptr && state == g_python.find_holder_state() &&
         load<const char*>(state, g_layout.thread_interpreter) == g_python.main_interpreter;
}

// CPython takes another key for its threads' states in a forked child.
void close_shortcut() {
  g_event_line.shortcut.is_open.store(false, std::memory_order_release);
}

void open_shortcut() {
  const PythonAnswers answers = find_answers(g_python);
  if (answers.initialized == nullptr || ::pthread_atfork(nullptr, nullptr, close_shortcut) != 0) return;
  WalkerShortcut& shortcut = g_event_line.shortcut;
  shortcut.links = g_layout.links();
  shortcut.thread_frame = static_cast<uint16_t>(g_layout.thread_frame);
  shortcut.holder_frame = static_cast<int16_t>(g_layout.holder_frame);
  shortcut.state = answers.state;
  shortcut.main_interpreter = g_python.main_interpreter;
  shortcut.initialized = answers.initialized;
  shortcut.interpreter_head = answers.interpreter_head;
  shortcut.is_open.store(true, std::memory_order_release);
}

}  // namespace

gm_status start_walker(char* reason, size_t capacity) {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  const WalkerState state = g_state.load(std::memory_order_acquire);
  if (state == WalkerState::On) return GM_OK;
  if (state == WalkerState::Off) {
    std::snprintf(reason, capacity, "Stacks are off: they were switched off earlier in this process.");
    return GM_UNSUPPORTED;
  }
  const gm_status status = find_python(&g_python, &g_layout, reason, capacity);
  if (status != GM_OK) return status;
  uint32_t depth = 0;
  bool is_known = true;
  visit_frames(current_frame(), [&](const char* code, uint32_t) {
    if (depth++ == 0) is_known = is_code_as_laid_out(g_layout, code);
  });
  if (!is_known) {
    std::snprintf(reason, capacity, "Stacks are off: this Python's code objects are laid out in an unknown way.");
    return GM_UNSUPPORTED;
  }
  if (may_watch_code() && watch_code(&g_event_line.shortcut.code_generation)) open_shortcut();
  g_state.store(WalkerState::On, std::memory_order_release);
  return GM_OK;
}

uint32_t find_stack(Intern& intern, WalkerCaches& caches, ChainMemo& memo) {
  const char* innermost = is_on() ? current_frame() : nullptr;
  if (innermost == nullptr) return 0;
  const uint64_t generation = g_event_line.shortcut.code_generation.load(std::memory_order_acquire);
  if (generation == 0) return find_stack_id(intern, caches, innermost);
  const uint32_t id = memo.find(g_layout.links(), innermost, generation);
  return id != 0 ? id : find_chain_id(intern, caches, memo, innermost, generation);
}

uint32_t walk_current_stack(uint64_t* code_addresses, uint32_t* instruction_offsets, uint32_t capacity) {
  uint32_t written = 0;
  return visit_frames(is_on() ? current_frame() : nullptr, [&](const char* code, uint32_t offset) {
    if (written == capacity) return;
    code_addresses[written] = reinterpret_cast<uintptr_t>(code);
    instruction_offsets[written] = offset;
    ++written;
  });
}

void stop_walker() {
  close_shortcut();
  g_state.store(WalkerState::Off, std::memory_order_release);
}

}  // namespace gpumem
