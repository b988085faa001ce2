// What if: the requests of a recording served by the policy under other settings, on a pretended card.
//
// Owns: which block of the pretended heap stands for which recorded address. Must not know: columns, files, how the
// recording went itself.
#pragma once

#include <deque>
#include <unordered_map>
#include <vector>

#include "policy.h"
#include "replay.h"
#include "simulated_device.h"

namespace gpumem {

struct WhatIfResult {
  uint64_t requests = 0;                // allocs and frees served
  std::vector<uint64_t> oom_positions;  // requests refused, in order
  uint64_t served_oom_count = 0;        // refused when recorded, served here
};

class WhatIf {
 public:
  WhatIf(const SimulatedDevice& device, const Settings& settings, const Behaviour& behaviour);

  void set_limit(uint64_t limit_bytes) { policy_.set_limit(limit_bytes); }
  void add_empty_cache(uint64_t position) { empty_caches_.push_back(position); }
  void serve(const RecordedEvent& event);

  const WhatIfResult& result() const { return result_; }
  const Policy& policy() const { return policy_; }

 private:
  void alloc(const RecordedEvent& event);
  void free(const RecordedEvent& event, bool waits);

  SimulatedDevice device_;
  Policy policy_;
  std::deque<uint64_t> empty_caches_;                         // positions not yet passed
  std::unordered_map<uint64_t, uint64_t> address_of_;         // recorded address -> pretended address
  std::unordered_map<uint64_t, uint64_t> waiting_stream_of_;  // recorded address of a pending block -> its stream
  uint64_t next_stream_ = uint64_t{1} << 63;                  // a stream for each pending block, done when it is
  WhatIfResult result_;
};

}  // namespace gpumem
