// What if: see the header.
#include "replay_what_if.h"

#include "gpumem.h"

namespace gpumem {

WhatIf::WhatIf(const SimulatedDevice& device, const Settings& settings, const Behaviour& behaviour)
    : device_(device), policy_(&device_, settings, behaviour, nullptr) {
  device_.hold_streams(true);
}

// Segment events are the recorded allocator's own doing; here the policy decides anew.
void WhatIf::serve(const RecordedEvent& event) {
  while (!empty_caches_.empty() && empty_caches_.front() <= event.position) {
    empty_caches_.pop_front();
    policy_.empty_cache();
  }
  switch (event.kind) {
    case GM_ALLOC:
    case GM_OOM:
      return alloc(event);
    case GM_FREE:
    case GM_FREE_REQUESTED:
      return free(event, event.kind == GM_FREE_REQUESTED);
    case GM_FREE_COMPLETED: {
      auto waiting = waiting_stream_of_.find(event.address);
      if (waiting == waiting_stream_of_.end()) return;
      device_.finish_stream(waiting->second);
      waiting_stream_of_.erase(waiting);
      return;
    }
    case GM_EMPTY_CACHE:
      policy_.empty_cache();
      return;
    default:
      return;
  }
}

// A request that failed when recorded is tried, and given back at once: what the program would have done with it
// nobody knows.
void WhatIf::alloc(const RecordedEvent& event) {
  if (!event.pool.is_default() && !policy_.has_pool(event.pool)) policy_.create_pool(event.pool, false, false, false);
  Request request;
  request.bytes = event.bytes;
  request.stream = event.stream;
  request.pool = &event.pool;
  Allocation allocation;
  ++result_.requests;
  if (policy_.allocate(request, &allocation) != Outcome::kOk) {
    result_.oom_positions.push_back(event.position);
    return;
  }
  if (event.kind == GM_ALLOC) {
    address_of_[event.address] = allocation.address;
    return;
  }
  ++result_.served_oom_count;
  policy_.free(allocation.address);
}

// A block that was refused here has nothing to free.
void WhatIf::free(const RecordedEvent& event, bool waits) {
  auto found = address_of_.find(event.address);
  if (found == address_of_.end()) return;
  if (waits) {
    waiting_stream_of_[event.address] = ++next_stream_;
    policy_.record_stream(found->second, next_stream_);
  }
  policy_.free(found->second);
  address_of_.erase(found);
  ++result_.requests;
}

}  // namespace gpumem
