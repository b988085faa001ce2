// Reads PYTORCH_CUDA_ALLOC_CONF strings and computes rounded sizes.
//
// The grammar is PyTorch's: tokens parted by , : [ ] with spaces dropped; numbers are read from the front of a
// token, so "64MB" counts as 64, exactly as PyTorch counts it.
//
#include "policy_settings.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

namespace gpumem {
namespace {

struct Tokens {
  std::vector<std::string> texts;  // words and one-character separators, in order
  std::vector<size_t> positions;   // where each begins in the string
  size_t next = 0;                 // the token to read now

  bool at_end() const { return next >= texts.size(); }
  bool is(const char* text) const { return !at_end() && texts[next] == text; }
};

Tokens split_tokens(const std::string& text) {
  Tokens tokens;
  std::string word;
  size_t word_position = 0;
  auto finish_word = [&] {
    if (word.empty()) return;
    tokens.texts.push_back(word);
    tokens.positions.push_back(word_position);
    word.clear();
  };
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == ',' || c == ':' || c == '[' || c == ']') {
      finish_word();
      tokens.texts.emplace_back(1, c);
      tokens.positions.push_back(i);
    } else if (c != ' ') {
      if (word.empty()) word_position = i;
      word += c;
    }
  }
  finish_word();
  return tokens;
}

class Parser {
 public:
  Parser(const std::string& text, Settings* settings) : text_(text), tokens_(split_tokens(text)), settings_(settings) {}

  bool parse(std::string* error) {
    while (!tokens_.at_end() && error_.empty()) {
      parse_option();
      if (error_.empty() && !tokens_.at_end()) expect(",");
    }
    *error = error_;
    return error_.empty();
  }

 private:
  void parse_option() {
    key_ = tokens_.texts[tokens_.next++];
    if (!expect(":")) return;
    if (key_ == "max_split_size_mb") {
      settings_->max_split_bytes = mib_at_least(20);
    } else if (key_ == "max_non_split_rounding_mb") {
      settings_->max_non_split_rounding_bytes = mib_at_least(20);
    } else if (key_ == "large_segment_size_mb") {
      settings_->large_segment_bytes = mib_at_least(3);
    } else if (key_ == "garbage_collection_threshold") {
      settings_->garbage_collection_threshold = number();
      if (!(settings_->garbage_collection_threshold > 0.0 && settings_->garbage_collection_threshold < 1.0))
        fail_value("must lie between 0 and 1, both excluded");
    } else if (key_ == "per_process_memory_fraction") {
      settings_->memory_fraction = number();
      settings_->memory_fraction_set = true;
      if (!(settings_->memory_fraction >= 0.0 && settings_->memory_fraction <= 1.0))
        fail_value("must lie between 0 and 1");
    } else if (key_ == "roundup_power2_divisions") {
      parse_divisions();
    } else if (key_ == "expandable_segments") {
      settings_->expandable_segments = truth();
    } else if (key_ == "throw_on_cudamalloc_oom") {
      settings_->reject_over_limit = truth();
    } else if (key_ == "graph_capture_record_stream_reuse") {
      settings_->graph_capture_record_stream_reuse = truth();
    } else if (key_ == "backend") {
      std::string backend = word();
      if (error_.empty() && backend != "native")
        fail_value("\"" + backend + "\" is not PyTorch's own allocator; use \"native\"");
    } else {
      parse_option_without_effect();
    }
  }

  // Options that PyTorch knows and that change no device address.
  void parse_option_without_effect() {
    static const char* const kBooleans[] = {"release_lock_on_cudamalloc", "pinned_use_cuda_host_register",
                                            "pinned_use_background_threads", "pinned_free_catch_all"};
    static const char* const kNumbers[] = {"pinned_num_register_threads", "pinned_reserve_segment_size_mb",
                                           "pinned_max_round_threshold_mb", "pinned_max_cached_size_mb"};
    for (const char* name : kBooleans)
      if (key_ == name) return void(truth());
    for (const char* name : kNumbers)
      if (key_ == name) return void(number());
    tokens_.next -= 2;
    fail("is no option of the caching allocator; see PyTorch's notes on PYTORCH_CUDA_ALLOC_CONF for those there are");
  }

  void parse_divisions() {
    auto& divisions = settings_->roundup_divisions;
    if (!tokens_.is("[")) {
      divisions.fill(division());
      return;
    }
    ++tokens_.next;
    size_t last = 0;
    bool first = true;
    while (error_.empty() && !tokens_.is("]")) {
      bool rest = tokens_.is(">");
      size_t start_token = tokens_.next;
      uint64_t start_mib = rest ? 0 : whole_number();
      if (rest) ++tokens_.next;
      if (!error_.empty() || !expect(":")) return;
      uint64_t value = division();
      if (!error_.empty()) return;
      if (rest) {
        std::fill(divisions.begin() + static_cast<std::ptrdiff_t>(std::min<size_t>(last + 1, divisions.size())),
                  divisions.end(), value);
      } else {
        if (!is_power_of_two(start_mib)) return fail_at(start_token, "interval starts must be powers of two, in MiB");
        size_t index = std::min<size_t>(static_cast<size_t>(63 - __builtin_clzll(start_mib)), divisions.size() - 1);
        if (first) std::fill(divisions.begin(), divisions.begin() + static_cast<std::ptrdiff_t>(index), value);
        divisions[index] = value;
        last = index;
        first = false;
      }
      if (!tokens_.is("]") && !expect(",")) return;
    }
    expect("]");
  }

  uint64_t division() {
    uint64_t value = whole_number();
    if (error_.empty() && value != 0 && !is_power_of_two(value))
      fail_value("divisions must be powers of two, or 0 for none");
    return value;
  }

  uint64_t mib_at_least(uint64_t least) {
    uint64_t value = whole_number();
    if (error_.empty() && value < least) fail_value("must be at least " + std::to_string(least) + " (MiB)");
    return std::min(value, kUnlimitedBytes / kMiB) * kMiB;
  }

  uint64_t whole_number() {
    std::string text = word();
    if (!error_.empty()) return 0;
    char* end = nullptr;
    unsigned long long value = std::strtoull(text.c_str(), &end, 10);
    if (end == text.c_str() || text[0] == '-') {
      fail_value("needs a whole number");
    }
    return value;
  }

  double number() {
    std::string text = word();
    if (!error_.empty()) return 0.0;
    char* end = nullptr;
    double value = std::strtod(text.c_str(), &end);
    if (end == text.c_str()) {
      fail_value("needs a number");
    }
    return value;
  }

  bool truth() {
    std::string text = word();
    if (error_.empty() && text != "True" && text != "False") {
      fail_value("needs True or False");
    }
    return text == "True";
  }

  std::string word() {
    if (tokens_.at_end() || tokens_.is(",") || tokens_.is(":") || tokens_.is("[") || tokens_.is("]")) {
      fail("has no value");
      return "";
    }
    return tokens_.texts[tokens_.next++];
  }

  bool expect(const char* separator) {
    if (tokens_.is(separator)) {
      ++tokens_.next;
      return true;
    }
    fail(std::string("needs \"") + separator + "\" here");
    return false;
  }

  // The value that was read last is wrong.
  void fail_value(const std::string& reason) { fail_at(tokens_.next - 1, reason); }

  void fail_at(size_t token, const std::string& reason) {
    tokens_.next = token;
    fail(reason);
  }

  void fail(const std::string& reason) {
    if (!error_.empty()) return;
    size_t position = tokens_.at_end() ? text_.size() : tokens_.positions[tokens_.next];
    error_ = "Allocator settings \"" + text_ + "\": " + key_ + " " + reason + " (at character " +
             std::to_string(position + 1) + ").";
  }

  static bool is_power_of_two(uint64_t value) { return value != 0 && (value & (value - 1)) == 0; }

  const std::string& text_;
  Tokens tokens_;
  Settings* settings_;
  std::string key_;    // the option being read
  std::string error_;  // the first thing wrong, "" while all is well
};

uint64_t round_up(uint64_t bytes, uint64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// The next of `divisions` equal steps between two powers of two.
uint64_t round_up_in_power_of_two(uint64_t bytes, uint64_t divisions) {
  uint64_t floor = uint64_t{1} << (63 - __builtin_clzll(bytes));
  if (floor == bytes) return bytes;
  uint64_t step = floor >> (63 - __builtin_clzll(divisions));
  return step == 0 ? floor * 2 : round_up(bytes, step);
}

}  // namespace

bool parse_settings(const std::string& text, Settings* settings, std::string* error) {
  *settings = Settings();
  return Parser(text, settings).parse(error);
}

uint64_t round_request(const Settings& settings, uint64_t bytes) {
  if (bytes < kBlockUnitBytes) return kBlockUnitBytes;
  int exponent = 63 - __builtin_clzll(bytes);
  uint64_t divisions = settings.roundup_divisions[static_cast<size_t>(std::clamp(exponent - 20, 0, 15))];
  if (divisions > 1 && bytes > kBlockUnitBytes * divisions) return round_up_in_power_of_two(bytes, divisions);
  return round_up(bytes, kBlockUnitBytes);
}

uint64_t segment_bytes_for(const Settings& settings, const Behaviour& behaviour, uint64_t rounded_bytes) {
  if (rounded_bytes <= kSmallRequestBytesMax) return kSmallSegmentBytes;
  uint64_t large_bytes = behaviour.large_segment_setting_counts ? settings.large_segment_bytes : kLargeSegmentBytes;
  if (rounded_bytes < kOwnSegmentRequestBytes && rounded_bytes <= large_bytes) return large_bytes;
  return round_up(rounded_bytes, kOwnSegmentUnitBytes);
}

}  // namespace gpumem
