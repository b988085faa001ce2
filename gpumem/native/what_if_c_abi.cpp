// The C interface of what-if replay: argument checks and translation.
#include <algorithm>

#include "gpumem_policy.h"
#include "policy_translate.h"
#include "replay_session.h"
#include "replay_what_if.h"

using gpumem::copy_text;
using gpumem::guarded;
using gpumem::guarded_on;

struct gm_what_if {
  gm_what_if(const gm_what_if_options& options, const gpumem::Settings& settings)
      : replay(gpumem::SimulatedDevice(options.memory_bytes, static_cast<gpumem::AddressOrder>(options.address_order),
                                       options.seed),
               settings, gpumem::behaviour_of(options.behaviour)),
        device(options.device) {
    replay.set_limit(gpumem::limit_of(options.limit_bytes, options.memory_bytes, settings));
  }

  gpumem::EventReader reader;
  gpumem::WhatIf replay;
  uint32_t device;
  uint64_t fed_count = 0;  // positions passed so far
  bool is_broken = false;  // see guarded_on
};

gm_status gm_what_if_create(const gm_what_if_options* options, gm_what_if** what_if, char* error, size_t capacity) {
  if (!options || !options->settings || !what_if || options->address_order > GM_ADDRESS_SCATTERED)
    return GM_BAD_ARGUMENT;
  return guarded([&]() -> gm_status {
    gpumem::Settings settings;
    std::string reason;
    bool ok = gpumem::parse_settings(options->settings, &settings, &reason);
    copy_text(reason, error, capacity);
    if (!ok) return GM_POLICY_BAD_SETTINGS;
    *what_if = new gm_what_if(*options, settings);
    return GM_OK;
  });
}

void gm_what_if_destroy(gm_what_if* what_if) {
  delete what_if;
}

gm_status gm_what_if_add_streams(gm_what_if* what_if, const uint64_t* handles, uint64_t count) {
  if (!what_if || (count && !handles)) return GM_BAD_ARGUMENT;
  return guarded_on(what_if, [&]() -> gm_status {
    what_if->reader.add_streams(handles, count);
    return GM_OK;
  });
}

gm_status gm_what_if_add_pools(gm_what_if* what_if, const uint64_t* first, const uint64_t* second, uint64_t count) {
  if (!what_if || (count && (!first || !second))) return GM_BAD_ARGUMENT;
  return guarded_on(what_if, [&]() -> gm_status {
    for (uint64_t i = 0; i < count; ++i) what_if->reader.add_pool(gpumem::PoolId{first[i], second[i]});
    return GM_OK;
  });
}

gm_status gm_what_if_add_empty_caches(gm_what_if* what_if, const uint64_t* positions, uint64_t count) {
  if (!what_if || (count && !positions)) return GM_BAD_ARGUMENT;
  return guarded_on(what_if, [&]() -> gm_status {
    for (uint64_t i = 0; i < count; ++i) what_if->replay.add_empty_cache(positions[i]);
    return GM_OK;
  });
}

gm_status gm_what_if_feed(gm_what_if* what_if, const gm_replay_events* events) {
  if (!what_if || !gpumem::has_columns(events)) return GM_BAD_ARGUMENT;
  return guarded_on(what_if, [&]() -> gm_status {
    for (uint64_t row = 0; row < events->count; ++row) {
      gpumem::RecordedEvent event;
      if (events->device[row] != what_if->device) continue;
      if (what_if->reader.read(*events, row, what_if->fed_count + row, &event)) what_if->replay.serve(event);
    }
    what_if->fed_count += events->count;
    return GM_OK;
  });
}

gm_status gm_what_if_get_result(const gm_what_if* what_if, gm_what_if_result* result) {
  if (!what_if || !result) return GM_BAD_ARGUMENT;
  const gpumem::Statistics& statistics = what_if->replay.policy().statistics();
  const gpumem::WhatIfResult& served = what_if->replay.result();
  *result = gm_what_if_result();
  result->requests = served.requests;
  result->allocated_bytes_peak = statistics.all.allocated_bytes.peak;
  result->active_bytes_peak = statistics.all.active_bytes.peak;
  result->requested_bytes_peak = statistics.all.requested_bytes.peak;
  result->reserved_bytes_peak = statistics.all.reserved_bytes.peak;
  result->reserved_bytes_end = statistics.all.reserved_bytes.now;
  result->cache_hits = statistics.cache_hits;
  result->splits = statistics.splits;
  result->alloc_retries = statistics.alloc_retries;
  result->device_allocs = statistics.device_allocs;
  result->device_frees = statistics.device_frees;
  result->ooms = served.oom_positions.size();
  result->first_oom_position = served.oom_positions.empty() ? UINT64_MAX : served.oom_positions.front();
  result->served_oom_count = served.served_oom_count;
  return GM_OK;
}

gm_status gm_what_if_get_ooms(const gm_what_if* what_if, uint64_t* positions, uint64_t capacity) {
  if (!what_if) return GM_BAD_ARGUMENT;
  const std::vector<uint64_t>& found = what_if->replay.result().oom_positions;
  if (found.size() > capacity || (capacity && !positions)) return GM_BAD_ARGUMENT;
  std::copy(found.begin(), found.end(), positions);
  return GM_OK;
}
