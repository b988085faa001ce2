// What is left of a snapshot's pickle once the entries of `device_traces` are taken out, written opcode by opcode.
//
// It keeps every remembered value under its own memo index, so that later references still hold. A string that an entry
// defines is written only where something outside entries refers to it; each distinct list of frames stays as an
// element of its trace's list, with the frames that it defines.
//
// Owns: the unpickler's stack and marks of the rest, which value is a trace. Must not know: what an entry holds.
#pragma once

#include <cstdint>
#include <vector>

#include "snapshot_pickle.h"

namespace gpumem {

class SnapshotRest : public SnapshotPickle {
 public:
  using SnapshotPickle::SnapshotPickle;

  uint32_t trace_count() const { return trace_count_; }  // lists in device_traces

 protected:
  bool in_trace() const { return !stack_.empty() && stack_.back().kind == Kind::trace; }

  void copy_opcode() {
    const uint8_t* from = at_;
    Value value;
    int64_t number = 0;
    uint32_t index = 0;
    if (read_number(&number)) return write(from, at_), push({Kind::number, true, 0});
    if (read_string(&value)) return write(from, at_), push(value);
    if (read_get(&value, &index)) {
      value.is_written ? write(from, at_) : write_string(texts_[value.row].text);
      return stack_.push_back(value);
    }
    if (read_put(&index)) return remember(index, top()), write_indexed('r', index);
    const uint8_t opcode = take();
    if (opcode == 0x80) read_unsigned(1);
    if (opcode == 'G') read_unsigned(8);
    if (opcode == 0x8b || opcode == 'B') read_text(4);
    if (opcode == 'C') read_text(1);
    const Kind list_kind = kind_of_new_list();
    write(from, at_);
    copy_structure(opcode, list_kind);
  }

  // Copies one value whole.
  void copy_value() {
    const uint64_t height = stack_.size() + 1, mark_count = marks_.size();
    copy_opcode();
    finish_value(height, mark_count);
  }

  // Copies opcodes until `height` values lie on the stack and nothing more goes into the last.
  void finish_value(uint64_t height, uint64_t mark_count) {
    while (stack_.size() != height || marks_.size() != mark_count || goes_on()) copy_opcode();
  }

  // Whether what is made now goes into the container below by one opcode for many.
  bool in_batch() const { return !marks_.empty() && marks_.back() == stack_.size(); }

  std::vector<Value> stack_;     // values of the rest's unpickler; entries never lie on it
  std::vector<uint64_t> marks_;  // stack heights at the open marks
  bool stopped_ = false;

 private:
  // If a put follows, the value is remembered and the put written.
  void copy_put(Value value) {
    uint32_t index = 0;
    if (!read_put(&index)) return;
    remember(index, value);
    write_indexed('r', index);
  }

  Kind kind_of_new_list() const {
    if (stack_.empty()) return Kind::list;
    const Value& before = stack_.back();
    if (before.kind == Kind::traces) return Kind::trace;
    const bool names_traces = before.kind == Kind::string && texts_[before.row].text == "device_traces";
    return names_traces && stack_.front().kind == Kind::dict && marks_.size() <= 1 ? Kind::traces : Kind::list;
  }

  uint32_t next_trace() {
    if (trace_count_ > kDeviceMax) throw Unsupported{};
    return trace_count_++;
  }

  void push(Value value) {
    stack_.push_back(value);
    copy_put(value);
  }

  // Entries are on the unpickler's stack and not on this one: nothing may reach below the innermost mark.
  uint64_t height_without(uint64_t count) const {
    const uint64_t floor = marks_.empty() ? 0 : marks_.back();
    if (stack_.size() < floor + count) throw Unsupported{};
    return stack_.size() - count;
  }

  const Value& top() const {
    if (stack_.empty()) throw Unsupported{};
    return stack_.back();
  }

  uint64_t pop_mark() {
    if (marks_.empty() || marks_.back() > stack_.size()) throw Unsupported{};
    const uint64_t height = marks_.back();
    marks_.pop_back();
    return height;
  }

  static bool makes_plain_value(uint8_t opcode) {
    switch (opcode) {
      case 'N':
      case 0x88:
      case 0x89:
      case 'G':
      case 0x8b:
      case 'B':
      case 'C':
      case ')':
        return true;
      default:
        return false;
    }
  }

  void copy_structure(uint8_t opcode, Kind list_kind) {
    if (makes_plain_value(opcode)) return push({});
    switch (opcode) {
      case 0x80:
        return;
      case '.':
        stopped_ = true;
        return;
      case ']':
        return push({list_kind, true, list_kind == Kind::trace ? next_trace() : kNoOrdinal});
      case '}':
        return push({Kind::dict, true, 0});
      case '(':
        return marks_.push_back(stack_.size());
      case 'a':
        return end_items(height_without(1));
      case 'e':
      case 'u':
        return end_items(pop_mark());
      case 's':
        return stack_.resize(height_without(2));
      case 't':
        stack_.resize(pop_mark());
        return push({});
      case 0x85:
      case 0x86:
      case 0x87:
        stack_.resize(height_without(opcode - 0x84u));
        return push({});
      default:
        throw Unsupported{};
    }
  }

  // Items go into the container below them; traces are told by their number, so their list holds nothing else.
  void end_items(uint64_t height) {
    if (height > 0 && stack_[height - 1].kind == Kind::traces) {
      for (uint64_t item = height; item < stack_.size(); ++item) {
        if (stack_[item].kind != Kind::trace) throw Unsupported{};
      }
    }
    stack_.resize(height);
  }

  // Whether the next opcode adds to the list or dict on top rather than beginning the next key.
  bool goes_on() const {
    const uint8_t opcode = peek();
    if (opcode == '(' || opcode == '}' || opcode == ']') return true;
    if (stack_.back().kind != Kind::list) return false;
    if (opcode == 'h') return peek(2) == 'a';
    if (opcode == 'j') return peek(5) == 'a';
    return opcode == 0x8c || opcode == 'X' ? is_appended_string() : false;
  }

  bool is_appended_string() const {
    const uint64_t width = peek() == 0x8c ? 1 : 4;
    uint64_t length = 0;
    for (uint64_t byte = 0; byte < width; ++byte) length |= static_cast<uint64_t>(peek(1 + byte)) << (8 * byte);
    const uint64_t behind = 1 + width + length;
    const uint8_t put = peek(behind);
    return peek(behind + (put == 0x94 ? 1 : put == 'q' ? 2 : put == 'r' ? 5 : 0)) == 'a';
  }

  static constexpr uint32_t kDeviceMax = 127;

  uint32_t trace_count_ = 0;
};

}  // namespace gpumem
