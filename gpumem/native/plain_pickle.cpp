// Whether a pickle holds plain data only: the check that stands before Python's unpickler.
//
// Python's unpickler, even one that refuses every global, can be made to crash (hashing a tuple nested a million deep),
// to hang (dictionary keys chosen to collide) or to take 64 GiB for a memo index of nine bytes. So the opcodes are
// walked first, with a stack that knows only the kind of each value, and nothing but what a pickler writes for dicts,
// lists, tuples, strings and numbers passes. It walks 500 MB a second.
//
// Owns: what an opcode takes and does. Must not know: Python, what a snapshot looks like.
#include <array>
#include <cstring>
#include <new>
#include <vector>

#include "gpumem.h"

namespace {

enum class Kind : uint8_t { scalar, small_int, string, list, dict, tuple };

enum class Argument : uint8_t { none, fixed1, fixed2, fixed4, fixed8, counted1, counted4, counted8, line };

enum class Effect : uint8_t {
  refused,  // no opcode of plain data
  code,     // names or calls code, or asks for data from elsewhere
  nothing,
  frame,
  stop,
  push,
  mark,
  append,
  appends,
  set_item,
  set_items,
  list_of_marked,
  dict_of_marked,
  tuple_of_marked,
  tuple_of_count,
  put,
  put_next,
  get,
};

struct Opcode {
  Argument argument = Argument::none;
  Effect effect = Effect::refused;
  Kind kind = Kind::scalar;
  uint8_t object_bytes =
      0;  // what the value pushed takes in Python, without its text or items; tuple_of_count: the count
};

// What values take in CPython, rounded up: the estimate decides only whether a file is absurd.
constexpr uint64_t kListItemBytes = 9;
constexpr uint64_t kDictItemBytes = 34;
constexpr uint64_t kTupleItemBytes = 8;
constexpr uint64_t kMemoSlotBytes = 16;

using Table = std::array<Opcode, 256>;

constexpr void add_values(Table& table) {
  table['N'] = {Argument::none, Effect::push, Kind::scalar, 0};
  table[0x88] = table[0x89] = table['N'];  // NEWTRUE, NEWFALSE
  table['K'] = {Argument::fixed1, Effect::push, Kind::small_int, 0};
  table['M'] = {Argument::fixed2, Effect::push, Kind::small_int, 32};
  table['J'] = {Argument::fixed4, Effect::push, Kind::small_int, 32};
  table['G'] = {Argument::fixed8, Effect::push, Kind::scalar, 24};
  table['I'] = table['L'] = table['F'] = {Argument::line, Effect::push, Kind::scalar, 32};
  table[0x8a] = {Argument::counted1, Effect::push, Kind::scalar, 32};               // LONG1
  table[0x8b] = {Argument::counted4, Effect::push, Kind::scalar, 32};               // LONG4
  table['S'] = table['V'] = {Argument::line, Effect::push, Kind::string, 56};       // STRING, UNICODE
  table['U'] = table[0x8c] = {Argument::counted1, Effect::push, Kind::string, 56};  // SHORT_BINSTRING, SHORT_BINUNICODE
  table['T'] = table['X'] = {Argument::counted4, Effect::push, Kind::string, 56};   // BINSTRING, BINUNICODE
  table[0x8d] = {Argument::counted8, Effect::push, Kind::string, 56};               // BINUNICODE8
  table['C'] = {Argument::counted1, Effect::push, Kind::scalar, 40};                // SHORT_BINBYTES
  table['B'] = {Argument::counted4, Effect::push, Kind::scalar, 40};                // BINBYTES
  table[0x8e] = {Argument::counted8, Effect::push, Kind::scalar, 40};               // BINBYTES8
  table[']'] = {Argument::none, Effect::push, Kind::list, 80};
  table['}'] = {Argument::none, Effect::push, Kind::dict, 80};
  table[')'] = {Argument::none, Effect::push, Kind::tuple, 0};
}

constexpr void add_structure(Table& table) {
  table[0x80] = {Argument::fixed1, Effect::nothing};  // PROTO
  table[0x95] = {Argument::counted8, Effect::frame};  // FRAME
  table['.'] = {Argument::none, Effect::stop};
  table['('] = {Argument::none, Effect::mark};
  table['a'] = {Argument::none, Effect::append};
  table['e'] = {Argument::none, Effect::appends};
  table['s'] = {Argument::none, Effect::set_item};
  table['u'] = {Argument::none, Effect::set_items};
  table['l'] = {Argument::none, Effect::list_of_marked};
  table['d'] = {Argument::none, Effect::dict_of_marked};
  table['t'] = {Argument::none, Effect::tuple_of_marked};
  for (uint8_t count = 1; count <= 3; ++count) {
    table[0x84 + count] = {Argument::none, Effect::tuple_of_count, Kind::tuple, count};
  }
  table['p'] = {Argument::line, Effect::put};
  table['q'] = {Argument::fixed1, Effect::put};
  table['r'] = {Argument::fixed4, Effect::put};
  table[0x94] = {Argument::none, Effect::put_next};  // MEMOIZE
  table['g'] = {Argument::line, Effect::get};
  table['h'] = {Argument::fixed1, Effect::get};
  table['j'] = {Argument::fixed4, Effect::get};
  // GLOBAL INST OBJ REDUCE BUILD PERSID BINPERSID, NEWOBJ EXT1 EXT2 EXT4 NEWOBJ_EX STACK_GLOBAL, NEXT_BUFFER
  // READONLY_BUFFER
  for (const char* code = "cioRbPQ\x81\x82\x83\x84\x92\x93\x97\x98"; *code != 0; ++code) {
    table[static_cast<uint8_t>(*code)] = {Argument::none, Effect::code};
  }
}

constexpr Table make_table() {
  Table made{};
  add_values(made);
  add_structure(made);
  return made;
}

constexpr Table kOpcodes = make_table();

class PickleWalk {
 public:
  PickleWalk(uint8_t* bytes, uint64_t byte_count)
      : begin_(bytes), at_(bytes), end_(bytes + byte_count), kept_end_(bytes), run_(bytes) {}

  gm_pickle_report run() {
    while (!done_) {
      opcode_at_ = at_;
      if (at_ == end_) {
        fail(GM_PICKLE_CUT_OFF);
        break;
      }
      const Opcode& opcode = kOpcodes[*at_++];
      ++opcode_count_;
      if (read_argument(opcode.argument)) act(opcode);
    }
    keep_run(at_);
    gm_pickle_report report{};
    report.byte_count = static_cast<uint64_t>(kept_end_ - begin_);
    report.offset = static_cast<uint64_t>(opcode_at_ - begin_);
    report.loaded_bytes = loaded_bytes_ + memo_.size() * kMemoSlotBytes;
    report.verdict = verdict_;
    report.opcode = opcode_at_ < end_ ? *opcode_at_ : 0;
    return report;
  }

 private:
  void fail(uint32_t verdict) {
    verdict_ = verdict;
    done_ = true;
  }

  uint64_t little_endian(uint64_t width) {
    uint64_t value = 0;
    std::memcpy(&value, at_, width);
    return value;
  }

  // Reads a number of `width` bytes; then, if `counted`, passes over that many bytes.
  bool read_number(uint64_t width, bool counted) {
    const auto left = static_cast<uint64_t>(end_ - at_);
    if (left < width) return fail(GM_PICKLE_CUT_OFF), false;
    number_ = little_endian(width);
    at_ += width;
    if (!counted) return true;
    if (number_ > left - width) return fail(GM_PICKLE_CUT_OFF), false;
    text_bytes_ = number_;
    // What a frame holds is walked; any other counted argument is passed over.
    if (*opcode_at_ != 0x95) at_ += number_;
    return true;
  }

  // Reads a line; number_ is its decimal value, or all ones when it has none.
  bool read_line() {
    const void* found = std::memchr(at_, '\n', static_cast<size_t>(end_ - at_));
    if (found == nullptr) return fail(GM_PICKLE_CUT_OFF), false;
    const auto* line_end = static_cast<const uint8_t*>(found);
    text_bytes_ = static_cast<uint64_t>(line_end - at_);
    number_ = text_bytes_ >= 1 && text_bytes_ <= 10 ? 0 : UINT64_MAX;
    for (const uint8_t* digit = at_; number_ != UINT64_MAX && digit < line_end; ++digit) {
      number_ = *digit >= '0' && *digit <= '9' ? number_ * 10 + (*digit - '0') : UINT64_MAX;
    }
    at_ = line_end + 1;
    return true;
  }

  bool read_argument(Argument argument) {
    text_bytes_ = 0;
    switch (argument) {
      case Argument::none:
        return true;
      case Argument::fixed1:
        return read_number(1, false);
      case Argument::fixed2:
        return read_number(2, false);
      case Argument::fixed4:
        return read_number(4, false);
      case Argument::fixed8:
        return read_number(8, false);
      case Argument::counted1:
        return read_number(1, true);
      case Argument::counted4:
        return read_number(4, true);
      case Argument::counted8:
        return read_number(8, true);
      case Argument::line:
        return read_line();
    }
    return false;
  }

  void act(const Opcode& opcode) {
    switch (opcode.effect) {
      case Effect::refused:
        return fail(GM_PICKLE_DAMAGED);
      case Effect::code:
        return fail(GM_PICKLE_NOT_PLAIN);
      case Effect::nothing:
        return;
      case Effect::frame:
        return take_out_frame();
      case Effect::stop:
        return stop();
      case Effect::push:
        return push(opcode.kind, opcode.object_bytes + text_bytes_);
      case Effect::mark:
        return marks_.push_back(stack_.size());
      case Effect::append:
        return append();
      case Effect::appends:
        return appends();
      case Effect::set_item:
        return set_items(2);
      case Effect::set_items:
        return set_items(pop_mark());
      case Effect::list_of_marked:
        return collect(Kind::list, 80, kListItemBytes, pop_mark());
      case Effect::dict_of_marked:
        return make_dict(pop_mark());
      case Effect::tuple_of_marked:
        return collect(Kind::tuple, 56, kTupleItemBytes, pop_mark());
      case Effect::tuple_of_count:
        return collect(Kind::tuple, 56, kTupleItemBytes, opcode.object_bytes);
      case Effect::put:
        return put(number_);
      case Effect::put_next:
        return put(memo_count_);
      case Effect::get:
        return get();
    }
  }

  // Frame headers only say how much to read at once; without them every value stands whole.
  void take_out_frame() {
    keep_run(opcode_at_);
    run_ = at_;
  }

  // Moves the bytes from run_ to `to` behind those kept before.
  void keep_run(const uint8_t* to) {
    const auto length = static_cast<size_t>(to - run_);
    if (kept_end_ != run_) std::memmove(kept_end_, run_, length);
    kept_end_ += length;
  }

  // Values above the innermost mark: what an opcode may touch.
  uint64_t reachable() const { return stack_.size() - (marks_.empty() ? 0 : marks_.back()); }

  void push(Kind kind, uint64_t object_bytes) {
    stack_.push_back(kind);
    loaded_bytes_ += object_bytes;
  }

  // Takes the innermost mark away; the number of values above it, or all ones when there is no mark.
  uint64_t pop_mark() {
    if (marks_.empty()) return UINT64_MAX;
    const uint64_t count = stack_.size() - marks_.back();
    marks_.pop_back();
    return count;
  }

  void append() {
    if (reachable() < 2 || stack_[stack_.size() - 2] != Kind::list) return fail(GM_PICKLE_DAMAGED);
    stack_.pop_back();
    loaded_bytes_ += kListItemBytes;
  }

  void appends() {
    const uint64_t count = pop_mark();
    if (count == UINT64_MAX || reachable() < count + 1) return fail(GM_PICKLE_DAMAGED);
    if (stack_[stack_.size() - count - 1] != Kind::list) return fail(GM_PICKLE_DAMAGED);
    stack_.resize(stack_.size() - count);
    loaded_bytes_ += count * kListItemBytes;
  }

  // Keys must be strings or small numbers: others could be chosen to collide, or take for ever to hash.
  bool has_plain_keys(uint64_t count) const {
    for (uint64_t key = stack_.size() - count; key < stack_.size(); key += 2) {
      if (stack_[key] != Kind::string && stack_[key] != Kind::small_int) return false;
    }
    return count % 2 == 0;
  }

  void set_items(uint64_t count) {
    if (count == UINT64_MAX || reachable() < count + 1 || !has_plain_keys(count)) return fail(GM_PICKLE_DAMAGED);
    if (stack_[stack_.size() - count - 1] != Kind::dict) return fail(GM_PICKLE_DAMAGED);
    stack_.resize(stack_.size() - count);
    loaded_bytes_ += count / 2 * kDictItemBytes;
  }

  void make_dict(uint64_t count) {
    if (count == UINT64_MAX || reachable() < count || !has_plain_keys(count)) return fail(GM_PICKLE_DAMAGED);
    collect(Kind::dict, 80, kDictItemBytes / 2, count);
  }

  // `count` values become one.
  void collect(Kind kind, uint64_t object_bytes, uint64_t item_bytes, uint64_t count) {
    if (count == UINT64_MAX || reachable() < count) return fail(GM_PICKLE_DAMAGED);
    stack_.resize(stack_.size() - count);
    push(kind, object_bytes + count * item_bytes);
  }

  // Picklers number what they remember in order, so an index never passes the number of opcodes.
  void put(uint64_t index) {
    if (reachable() == 0 || index > opcode_count_) return fail(GM_PICKLE_DAMAGED);
    if (index >= memo_.size()) memo_.resize(index + 1, kNoMemo);
    memo_count_ += memo_[index] == kNoMemo;
    memo_[index] = static_cast<uint8_t>(stack_.back());
  }

  void get() {
    if (number_ >= memo_.size() || memo_[number_] == kNoMemo) return fail(GM_PICKLE_DAMAGED);
    push(static_cast<Kind>(memo_[number_]), 0);
  }

  void stop() {
    if (stack_.size() != 1 || !marks_.empty()) return fail(GM_PICKLE_DAMAGED);
    done_ = true;
  }

  static constexpr uint8_t kNoMemo = 255;

  const uint8_t* begin_;                // the pickle's first byte
  const uint8_t* at_;                   // the next byte to read
  const uint8_t* end_;                  // behind the last byte
  uint8_t* kept_end_;                   // behind the bytes kept so far; ≤ run_
  const uint8_t* run_;                  // the first byte behind the last frame header
  const uint8_t* opcode_at_ = nullptr;  // the opcode being looked at
  std::vector<Kind> stack_;             // the kind of every value on the unpickler's stack
  std::vector<uint64_t> marks_;         // stack heights at the open marks; each ≤ stack_.size()
  std::vector<uint8_t> memo_;           // Kind by memo index, kNoMemo where unset
  uint64_t memo_count_ = 0;             // indices set: where the unpickler puts what has no index of its own
  uint64_t number_ = 0;                 // the opcode's numeric argument
  uint64_t text_bytes_ = 0;             // length of the opcode's text
  uint64_t opcode_count_ = 0;           // opcodes so far
  uint64_t loaded_bytes_ = 0;           // what the values take in Python, estimated
  uint32_t verdict_ = GM_PICKLE_PLAIN;
  bool done_ = false;
};

}  // namespace

gm_status gm_pickle_check(void* bytes, uint64_t byte_count, gm_pickle_report* report) {
  if (report == nullptr || (bytes == nullptr && byte_count != 0)) return GM_BAD_ARGUMENT;
  try {
    *report = PickleWalk(static_cast<uint8_t*>(bytes), byte_count).run();
    return GM_OK;
  } catch (const std::bad_alloc&) {
    *report = {0, UINT64_MAX, 0, GM_PICKLE_PLAIN, 0};
    return GM_OK;
  }
}
