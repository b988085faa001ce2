// What the C interfaces of policy and replay share; see the header.
#include "policy_translate.h"

#include <algorithm>
#include <cstring>

namespace gpumem {

void copy_text(const std::string& text, char* target, size_t capacity) {
  if (!target || capacity == 0) return;
  size_t length = std::min(text.size(), capacity - 1);
  std::memcpy(target, text.data(), length);
  target[length] = 0;
}

Behaviour behaviour_of(uint32_t bits) {
  Behaviour behaviour;
  behaviour.search_after_retry_wait = bits & GM_BEHAVIOUR_SEARCH_AFTER_RETRY_WAIT;
  behaviour.routed_pool_blocks_release = !(bits & GM_BEHAVIOUR_ROUTED_POOL_MAY_RELEASE);
  behaviour.large_segment_setting_counts = bits & GM_BEHAVIOUR_LARGE_SEGMENT_SETTING;
  if (bits & GM_BEHAVIOUR_OLDEST_BLOCK_FIRST) behaviour.elder_first = ElderFirst::kBlock;
  if (bits & GM_BEHAVIOUR_OLDEST_SEGMENT_FIRST) behaviour.elder_first = ElderFirst::kSegment;
  return behaviour;
}

gm_status status_of(Outcome outcome) {
  switch (outcome) {
    case Outcome::kOk:
      return GM_OK;
    case Outcome::kOutOfMemory:
      return GM_POLICY_OUT_OF_MEMORY;
    case Outcome::kTooLarge:
      return GM_POLICY_TOO_LARGE;
    case Outcome::kNotLive:
      return GM_POLICY_NOT_LIVE;
    case Outcome::kPoolUnknown:
      return GM_POLICY_POOL_UNKNOWN;
    case Outcome::kDeviceFailed:
      break;
  }
  return GM_POLICY_DEVICE_FAILED;
}

uint64_t limit_of(uint64_t limit_bytes, uint64_t memory_bytes, const Settings& settings) {
  if (limit_bytes != GM_NO_LIMIT || !settings.memory_fraction_set || settings.memory_fraction >= 1.0)
    return limit_bytes;
  return static_cast<uint64_t>(settings.memory_fraction * static_cast<double>(memory_bytes));
}

bool has_columns(const gm_replay_events* events) {
  return events && (events->count == 0 || (events->kind && events->device && events->stream && events->pool &&
                                           events->address && events->requested_bytes));
}

// Reservations appear as their mapped ranges.
void list_heap(const Policy& policy, gm_heap_segments* segments, gm_heap_blocks* blocks) {
  segments->count = 0;
  blocks->count = 0;
  uint64_t range_end = 0;
  uint64_t segment_address = UINT64_MAX;
  policy.visit([&](const SegmentDescription& segment, const BlockDescription& block) {
    if (block.state == BlockState::kUnmapped) return;
    bool continues = segment.address == segment_address && block.address == range_end;
    segment_address = segment.address;
    range_end = block.address + block.bytes;
    if (!continues) {
      uint64_t row = segments->count++;
      if (segments->address) {
        segments->address[row] = block.address;
        segments->bytes[row] = 0;
        segments->stream[row] = segment.stream;
        segments->pool_first[row] = segment.pool.first;
        segments->pool_second[row] = segment.pool.second;
        segments->is_small[row] = segment.is_small;
        segments->is_expandable[row] = segment.page_bytes != 0;
      }
    }
    if (segments->address) segments->bytes[segments->count - 1] += block.bytes;
    uint64_t row = blocks->count++;
    if (!blocks->address) return;
    blocks->address[row] = block.address;
    blocks->bytes[row] = block.bytes;
    blocks->requested_bytes[row] = block.requested_bytes;
    blocks->state[row] = static_cast<uint8_t>(block.state);
  });
}

void fill_heap(const Policy& policy, HeapRows* rows) {
  list_heap(policy, &rows->segments, &rows->blocks);
  uint64_t segment_count = rows->segments.count;
  uint64_t block_count = rows->blocks.count;
  rows->words.resize(5 * segment_count + 3 * block_count + 1);
  rows->bytes.resize(2 * segment_count + block_count + 1);
  uint64_t* word = rows->words.data();
  for (uint64_t** column : {&rows->segments.address, &rows->segments.bytes, &rows->segments.stream,
                            &rows->segments.pool_first, &rows->segments.pool_second}) {
    *column = word;
    word += segment_count;
  }
  for (uint64_t** column : {&rows->blocks.address, &rows->blocks.bytes, &rows->blocks.requested_bytes}) {
    *column = word;
    word += block_count;
  }
  rows->segments.is_small = rows->bytes.data();
  rows->segments.is_expandable = rows->segments.is_small + segment_count;
  rows->blocks.state = rows->segments.is_expandable + segment_count;
  list_heap(policy, &rows->segments, &rows->blocks);
}

}  // namespace gpumem
