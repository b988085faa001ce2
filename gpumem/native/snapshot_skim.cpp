// Takes the entries of `device_traces` out of a snapshot's pickle as rows, and leaves a pickle of the rest.
//
// A million entries as Python dicts take half a second to make, as long to take apart and 400 MB; as rows a fraction of
// each. Only entries exactly as PyTorch writes them are taken: anything else ends the skim with GM_UNSUPPORTED, and the
// importer goes the long way, which gives the same trace.
//
// Owns: the shape of a trace entry; the rest is written by snapshot_rest.h. Must not know: Python, what events mean.
// Expects bytes that gm_pickle_check passed.
#include <exception>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "snapshot_rest.h"

using namespace gpumem;

namespace {

constexpr uint64_t kEntryBytesMin = 40;  // what an entry takes in a pickle, seldom less

class Skim : public SnapshotRest {
 public:
  Skim(const uint8_t* bytes, uint64_t byte_count) : SnapshotRest(bytes, byte_count) {
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
  uint32_t frames_count_ = 0;  // lists of frames kept in the traces

 private:
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

  struct Known {
    uint32_t ordinal;
    uint32_t memo;
  };

  std::unordered_map<std::string_view, Known> lists_;  // lists of frames by the bytes of their references
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
  parts->trace_count = skim->skim.trace_count();
  parts->frames_count = skim->skim.frames_count_;
  return GM_OK;
}

void gm_snapshot_skim_free(gm_snapshot_skim* skim) {
  delete skim;
}
