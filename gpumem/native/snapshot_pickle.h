// A snapshot's pickle opcode by opcode: read from bytes that gm_pickle_check passed, and in part written anew.
//
// Owns: numbers, strings and references, what PyTorch's words mean. Must not know: which values are entries.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "gpumem.h"

namespace gpumem {

constexpr uint32_t kNoOrdinal = UINT32_MAX;

enum class Kind : uint8_t { other, number, string, list, dict, traces, trace, entry };

enum class Field : uint8_t {
  ignored,
  action,
  address,
  bytes,
  stream,
  time,
  frames,
  compile_context,
  metadata,
  pool,
  category
};

struct Value {
  Kind kind = Kind::other;
  bool is_written = true;  // false: a string that only entries define; it is written where the rest refers to it
  uint32_t row = 0;        // string: row of texts; list: ordinal among the lists of frames, or kNoOrdinal
};

struct Text {
  std::string_view text;
  Field field;      // what it means as a key
  uint8_t gm_kind;  // what it means as an action, 0 nothing
};

struct Unsupported {};  // an entry is not as PyTorch writes it

inline Field field_of(std::string_view text) {
  constexpr std::pair<std::string_view, Field> kFields[] = {
      // never destroyed
      {"action", Field::action},     {"addr", Field::address},           {"device_free", Field::address},
      {"size", Field::bytes},        {"stream", Field::stream},          {"time_us", Field::time},
      {"frames", Field::frames},     {"pool_id", Field::pool},           {"compile_context", Field::compile_context},
      {"category", Field::category}, {"user_metadata", Field::metadata},
  };
  for (const auto& [name, field] : kFields) {
    if (name == text) return field;
  }
  return Field::ignored;
}

inline uint8_t kind_of(std::string_view text) {
  constexpr std::pair<std::string_view, uint8_t> kKinds[] = {
      // never destroyed
      {"alloc", GM_ALLOC},
      {"free", GM_FREE},
      {"free_requested", GM_FREE_REQUESTED},
      {"free_completed", GM_FREE_COMPLETED},
      {"segment_alloc", GM_SEGMENT_ALLOC},
      {"segment_free", GM_SEGMENT_FREE},
      {"segment_map", GM_SEGMENT_MAP},
      {"segment_unmap", GM_SEGMENT_UNMAP},
      {"oom", GM_OOM},
      {"snapshot", GM_SNAPSHOT},
      {"annotate", GM_MARK},
  };
  for (const auto& [name, kind] : kKinds) {
    if (name == text) return kind;
  }
  return 0;
}

class SnapshotPickle {
 public:
  SnapshotPickle(const uint8_t* bytes, uint64_t byte_count) : at_(bytes), end_(bytes + byte_count) {
    texts_.push_back({{}, Field::ignored, 0});
  }

  const std::vector<Text>& texts() const { return texts_; }
  const std::vector<uint8_t>& rest() const { return rest_; }

 protected:
  uint8_t peek(uint64_t ahead = 0) const {
    if (at_ + ahead >= end_) throw Unsupported{};
    return at_[ahead];
  }

  uint8_t take() {
    const uint8_t byte = peek();
    ++at_;
    return byte;
  }

  uint64_t read_unsigned(uint64_t width) {
    if (static_cast<uint64_t>(end_ - at_) < width) throw Unsupported{};
    uint64_t value = 0;
    std::memcpy(&value, at_, width);
    at_ += width;
    return value;
  }

  std::string_view read_text(uint64_t width) {
    const uint64_t length = read_unsigned(width);
    if (static_cast<uint64_t>(end_ - at_) < length) throw Unsupported{};
    const std::string_view text(reinterpret_cast<const char*>(at_), length);
    at_ += length;
    return text;
  }

  // Whether the next opcode is a number that an entry may hold; if so it is read.
  bool read_number(int64_t* value) {
    switch (peek()) {
      case 'K':
        ++at_;
        *value = static_cast<int64_t>(read_unsigned(1));
        return true;
      case 'M':
        ++at_;
        *value = static_cast<int64_t>(read_unsigned(2));
        return true;
      case 'J':
        ++at_;
        *value = static_cast<int32_t>(read_unsigned(4));
        return true;
      case 0x8a:
        break;
      default:
        return false;
    }
    ++at_;
    const std::string_view digits = read_text(1);
    if (digits.size() > 8) throw Unsupported{};
    uint64_t bits = !digits.empty() && (digits.back() & 0x80) ? UINT64_MAX : 0;
    std::memcpy(&bits, digits.data(), digits.size());
    *value = static_cast<int64_t>(bits);
    return true;
  }

  // Whether the next opcode makes a string; if so it is read into a row of texts.
  bool read_string(Value* value) {
    uint64_t width = 0;
    switch (peek()) {
      case 0x8c:
        width = 1;
        break;
      case 'X':
        width = 4;
        break;
      case 0x8d:
        width = 8;
        break;
      default:
        return false;
    }
    ++at_;
    *value = {Kind::string, true, row_of(read_text(width))};
    return true;
  }

  // PyTorch writes many texts anew for every entry, so equal ones are one row.
  uint32_t row_of(std::string_view text) {
    const auto [found, is_new] = text_rows_.try_emplace(text, static_cast<uint32_t>(texts_.size()));
    if (is_new) texts_.push_back({text, field_of(text), kind_of(text)});
    return found->second;
  }

  bool read_get(Value* value, uint32_t* index) {
    if (peek() != 'h' && peek() != 'j') return false;
    const uint64_t width = *at_++ == 'h' ? 1 : 4;
    *index = static_cast<uint32_t>(read_unsigned(width));
    if (*index >= memo_.size()) throw Unsupported{};
    *value = memo_[*index];
    if (value->kind >= Kind::traces) throw Unsupported{};  // no snapshot lists a trace or an entry twice
    return true;
  }

  // Whether the next opcode remembers the value just made; if so it is read, and *index set.
  bool read_put(uint32_t* index) {
    switch (peek()) {
      case 0x94:
        ++at_;
        *index = static_cast<uint32_t>(memo_.size());
        return true;
      case 'q':
        ++at_;
        *index = static_cast<uint32_t>(read_unsigned(1));
        return true;
      case 'r':
        ++at_;
        *index = static_cast<uint32_t>(read_unsigned(4));
        return true;
      default:
        return false;
    }
  }

  void remember(uint32_t index, Value value) {
    if (index > memo_.size()) throw Unsupported{};
    if (index == memo_.size()) memo_.emplace_back();
    memo_[index] = value;
  }

  void write(const uint8_t* from, const uint8_t* to) { rest_.insert(rest_.end(), from, to); }

  void write_indexed(uint8_t opcode, uint32_t index) {
    const uint8_t bytes[5] = {opcode, static_cast<uint8_t>(index), static_cast<uint8_t>(index >> 8),
                              static_cast<uint8_t>(index >> 16), static_cast<uint8_t>(index >> 24)};
    write(bytes, bytes + 5);
  }

  void write_string(std::string_view text) {
    if (text.size() > UINT32_MAX) throw Unsupported{};
    write_indexed('X', static_cast<uint32_t>(text.size()));
    const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
    write(bytes, bytes + text.size());
  }

  const uint8_t* at_;          // the next byte to read
  const uint8_t* end_;         // behind the last byte
  std::vector<Text> texts_;    // strings by row; row 0 is none
  std::vector<Value> memo_;    // what is remembered, by memo index
  std::vector<uint8_t> rest_;  // the pickle without entries, as far as it is written

 private:
  std::unordered_map<std::string_view, uint32_t> text_rows_;  // rows of texts
};

}  // namespace gpumem
