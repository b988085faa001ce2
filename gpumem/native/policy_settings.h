// The allocator's settings: the options string parsed as PyTorch parses it, and the sizes that follow from it.
//
// Owns: option names, defaults, limits, rounding. Must not know: pools, blocks, devices.
//
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace gpumem {

constexpr uint64_t kMiB = 1024 * 1024;
constexpr uint64_t kBlockUnitBytes = 512;                 // every block is a multiple of this
constexpr uint64_t kSmallRequestBytesMax = kMiB;          // rounded requests up to this go to the small pool
constexpr uint64_t kSmallSegmentBytes = 2 * kMiB;         // segments of the small pool
constexpr uint64_t kLargeSegmentBytes = 20 * kMiB;        // segments for middling requests
constexpr uint64_t kOwnSegmentRequestBytes = 10 * kMiB;   // from here on a segment fits its request …
constexpr uint64_t kOwnSegmentUnitBytes = 2 * kMiB;       // … rounded up to this
constexpr uint64_t kRequestBytesMax = uint64_t{1} << 60;  // PyTorch refuses more than 1 EiB outright
constexpr uint64_t kReservationBytesUnknownCard = uint64_t{1} << 42;  // plenty, where the card is not known
constexpr uint64_t kUnlimitedBytes = UINT64_MAX;

// What comes first among equally large free blocks; what is equal in that too goes by its address.
enum class ElderFirst : uint8_t { kNone, kBlock, kSegment };

// What differs between PyTorch versions; the defaults are 2.11, whose recordings hold us to it.
struct Behaviour {
  bool search_after_retry_wait = false;       // look again for a block once pending frees were waited for
  bool routed_pool_blocks_release = true;     // a pool in force for any thread forbids the full release
  bool large_segment_setting_counts = false;  // large_segment_size_mb changes segments (2.11 parses it only)
  ElderFirst elder_first = ElderFirst::kNone;
};

struct Settings {
  uint64_t max_split_bytes = kUnlimitedBytes;                  // blocks from here on are never split
  uint64_t max_non_split_rounding_bytes = kLargeSegmentBytes;  // how much too large such a block may be
  double garbage_collection_threshold = 0.0;                   // 0 off; else the share of the limit
  double memory_fraction = 1.0;                                // per_process_memory_fraction
  bool memory_fraction_set = false;                            // the string names it
  bool expandable_segments = false;
  bool reject_over_limit = false;                     // throw_on_cudamalloc_oom
  bool graph_capture_record_stream_reuse = false;     // parsed; captures' reuse is not modelled
  uint64_t large_segment_bytes = kLargeSegmentBytes;  // large_segment_size_mb
  std::array<uint64_t, 16> roundup_divisions{};       // per power of two from 1 MiB; 0 off
};

// Parses an options string ("" gives the defaults). False: `error` says what is wrong where.
bool parse_settings(const std::string& text, Settings* settings, std::string* error);

// Bytes of the block that a request of `bytes` needs.
[[gnu::hot]] uint64_t round_request(const Settings& settings, uint64_t bytes);

// Bytes of the segment asked from the driver when no block fits a rounded request.
uint64_t segment_bytes_for(const Settings& settings, const Behaviour& behaviour, uint64_t rounded_bytes);

}  // namespace gpumem
