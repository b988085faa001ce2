// Takes the entries of `device_traces` out of a snapshot's pickle as rows, and leaves a pickle of the rest.
//
// A million entries as Python dicts take half a second to make, as long to take apart and 400 MB; as rows a fraction of
// each. Only entries exactly as PyTorch writes them are taken: anything else ends the skim with GM_UNSUPPORTED, and the
// importer goes the long way, which gives the same trace.
//
// The rest keeps every remembered value under its own memo index, so that later references still hold. A string that
// an entry defines is written only where something outside entries refers to it; each distinct list of frames stays as
// an element of its trace's list, with the frames that it defines.
//
// Owns: the shape of a trace entry. Must not know: Python, what events mean. Expects bytes that gm_pickle_check passed.
#include <exception>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "snapshot_pickle.h"

using namespace gpumem;

namespace {

constexpr uint32_t kDeviceMax = 127;
constexpr uint64_t kEntryBytesMin = 40;  // what an entry takes in a pickle, seldom less

class Skim : public SnapshotPickle {
 public:
  Skim(const uint8_t* bytes, uint64_t byte_count) : SnapshotPickle(bytes, byte_count) {
    rows_.reserve(byte_count / kEntryBytesMin);  // pages that no row reaches are never made
  }

  void run() {
    while (!stopped_) {
      if (peek() == '}' && in_trace()) {
        skim_entry();
      } else {
        copy_opcode();
      }
    }
  }

  std::vector<gm_snapshot_entry> rows_;
  uint32_t trace_count_ = 0;   // lists in device_traces
  uint32_t frames_count_ = 0;  // lists of frames kept in them

 private:
  // If a put follows, the value is remembered and the put written.
  void copy_put(Value value) {
    uint32_t index = 0;
    if (!read_put(&index)) return;
    remember(index, value);
    write_indexed('r', index);
  }

  // ---- the rest: copied opcode by opcode ----

  bool in_trace() const { return !stack_.empty() && stack_.back().kind == Kind::trace; }

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

  void copy_structure(uint8_t opcode, Kind list_kind) {
    switch (opcode) {
      case 0x80:
        return;
      case '.':
        stopped_ = true;
        return;
      case 'N':
      case 0x88:
      case 0x89:
      case 'G':
      case 0x8b:
      case 'B':
      case 'C':
      case ')':
        return push({});
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

  // ---- entries ----

  void skim_entry() {
    ++at_;
    uint32_t index = 0;
    if (read_put(&index)) remember(index, {Kind::entry, true, 0});
    if (peek() != '(') throw Unsupported{};
    ++at_;
    gm_snapshot_entry row{};
    row.time_us = -1;
    row.address = row.bytes = row.stream = -1;
    while (peek() != 'u') skim_item(&row);
    ++at_;
    if (row.kind == 0 || row.address < 0 || row.bytes < 0 || row.stream < 0 || row.time_us < -1) throw Unsupported{};
    add_row(row);
    if (!in_batch() && take() != 'a') throw Unsupported{};
  }

  // A free_completed directly behind its own free_requested becomes one free with it.
  void add_row(gm_snapshot_entry row) {
    row.device = static_cast<uint8_t>(stack_.back().row);
    gm_snapshot_entry* last = rows_.empty() ? nullptr : &rows_.back();
    if (last != nullptr && row.kind == GM_FREE_COMPLETED && last->kind == GM_FREE_REQUESTED &&
        last->device == row.device && last->address == row.address) {
      last->kind = GM_FREE;
    } else {
      rows_.push_back(row);
    }
  }

  void skim_item(gm_snapshot_entry* row) {
    const Value key = skim_string();
    const Field field = texts_[key.row].field;
    switch (field) {
      case Field::action:
        row->kind = texts_[skim_string().row].gm_kind;
        return;
      case Field::address:
        row->address = skim_number();
        return;
      case Field::bytes:
        row->bytes = skim_number();
        return;
      case Field::stream:
        row->stream = skim_number();
        return;
      case Field::time:
        row->time_us = skim_number();
        return;
      case Field::frames:
        row->frames = skim_frames();
        return;
      case Field::compile_context:
        row->compile_context = skim_string().row;
        return;
      case Field::metadata:
        row->metadata = skim_string().row;
        return;
      case Field::pool:
        skim_pool(row);
        return;
      case Field::category:
        row->has_category = 1;
        return skim_ignored();
      case Field::ignored:
        return skim_ignored();
    }
  }

  int64_t skim_number() {
    int64_t value = 0;
    if (!read_number(&value)) throw Unsupported{};
    return value;
  }

  Value skim_string() {
    Value value;
    uint32_t index = 0;
    if (read_get(&value, &index)) {
      if (value.kind != Kind::string) throw Unsupported{};
      return value;
    }
    if (!read_string(&value)) throw Unsupported{};
    value.is_written = false;
    if (read_put(&index)) remember(index, value);
    return value;
  }

  void skim_pool(gm_snapshot_entry* row) {
    const bool marked = peek() == '(';
    if (marked) ++at_;
    const int64_t first = skim_number(), second = skim_number();
    if (first < 0 || second < 0 || take() != (marked ? 't' : 0x86)) throw Unsupported{};
    row->pool_first = static_cast<uint64_t>(first);
    row->pool_second = static_cast<uint64_t>(second);
    row->has_pool = 1;
    uint32_t index = 0;
    if (read_put(&index))
      remember(index, {Kind::entry, true, 0});  // used again nowhere: PyTorch makes a tuple for each
  }

  // A value that is not needed: its definitions are kept.
  void skim_ignored() {
    copy_value();
    stack_.pop_back();
    rest_.push_back('0');
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

  // The ordinal + 1 of a list of frames; a new one stays in the trace's list.
  uint32_t skim_frames() {
    const uint8_t* from = at_;
    Value value;
    uint32_t index = 0;
    if (read_get(&value, &index)) {
      if (value.kind != Kind::list) throw Unsupported{};
      if (value.row == kNoOrdinal) {
        value.row = memo_[index].row = frames_count_++;
        write(from, at_);
        keep_frames();
      }
      return value.row + 1;
    }
    if (take() != ']') throw Unsupported{};
    const bool has_put = read_put(&index);
    const uint8_t* items = at_;
    const std::string_view references = read_references();
    const auto known = has_put && !references.empty() ? lists_.find(references) : lists_.end();
    if (known == lists_.end()) {
      at_ = items;
      const uint32_t ordinal = copy_frames(has_put, index);
      if (has_put && !references.empty()) lists_.emplace(references, Known{ordinal, index});
      return ordinal + 1;
    }
    remember(index, {Kind::list, true, known->second.ordinal});
    write_indexed('j', known->second.memo);
    write_indexed('r', index);
    rest_.push_back('0');
    return known->second.ordinal + 1;
  }

  // The bytes of a list's items where they are references alone, in one batch; else empty.
  std::string_view read_references() {
    const uint8_t* from = at_;
    if (peek() != '(') return {};
    ++at_;
    while (peek() == 'h' || peek() == 'j') at_ += *at_ == 'h' ? 2 : 5;
    if (peek() != 'e') return {};
    ++at_;
    return peek() == '(' ? std::string_view{} : std::string_view(reinterpret_cast<const char*>(from), at_ - from);
  }

  // Copies the rest of a list of frames that is to stay; its ordinal.
  uint32_t copy_frames(bool has_put, uint32_t index) {
    const Value list{Kind::list, true, frames_count_++};
    rest_.push_back(']');
    if (has_put) {
      remember(index, list);
      write_indexed('r', index);
    }
    stack_.push_back(list);
    finish_value(stack_.size(), marks_.size());
    stack_.pop_back();
    keep_frames();
    return list.row;
  }

  void keep_frames() {
    if (!in_batch()) rest_.push_back('a');
  }

  // Whether what is made now goes into the container below by one opcode for many.
  bool in_batch() const { return !marks_.empty() && marks_.back() == stack_.size(); }

  struct Known {
    uint32_t ordinal;
    uint32_t memo;
  };

  std::vector<Value> stack_;                           // values of the rest's unpickler; entries never lie on it
  std::vector<uint64_t> marks_;                        // stack heights at the open marks
  std::unordered_map<std::string_view, Known> lists_;  // lists of frames by the bytes of their references
  bool stopped_ = false;
};

}  // namespace

struct gm_snapshot_skim {
  explicit gm_snapshot_skim(const void* bytes, uint64_t byte_count)
      : skim(static_cast<const uint8_t*>(bytes), byte_count), begin(static_cast<const char*>(bytes)) {}

  Skim skim;                    // what was taken out
  const char* begin;            // the pickle's first byte
  std::vector<uint64_t> spans;  // offset and length of each text
};

gm_status gm_snapshot_skim_create(const void* bytes, uint64_t byte_count, gm_snapshot_skim** skim) {
  if (bytes == nullptr || skim == nullptr) return GM_BAD_ARGUMENT;
  *skim = nullptr;
  gm_snapshot_skim* made = nullptr;
  try {
    made = new gm_snapshot_skim(bytes, byte_count);
    made->skim.run();
    for (const Text& text : made->skim.texts()) {
      made->spans.push_back(text.text.empty() ? 0 : static_cast<uint64_t>(text.text.data() - made->begin));
      made->spans.push_back(text.text.size());
    }
    *skim = made;
    return GM_OK;
  } catch (const Unsupported&) {
    delete made;
    return GM_UNSUPPORTED;
  } catch (const std::exception&) {  // no memory for it: the long way needs more and says so
    delete made;
    return GM_UNSUPPORTED;
  }
}

gm_status gm_snapshot_skim_get(const gm_snapshot_skim* skim, gm_snapshot_parts* parts) {
  if (skim == nullptr || parts == nullptr) return GM_BAD_ARGUMENT;
  parts->entries = skim->skim.rows_.data();
  parts->entry_count = skim->skim.rows_.size();
  parts->rest = skim->skim.rest().data();
  parts->rest_bytes = skim->skim.rest().size();
  parts->texts = skim->spans.data();
  parts->text_count = skim->spans.size() / 2;
  parts->trace_count = skim->skim.trace_count_;
  parts->frames_count = skim->skim.frames_count_;
  return GM_OK;
}

void gm_snapshot_skim_free(gm_snapshot_skim* skim) {
  delete skim;
}
