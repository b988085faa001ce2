// Private pools: who is sent to them, when they may be emptied.
#include "check.h"
#include "policy.h"

namespace gpumem {

PrivatePool* Policy::find_private_pool(PoolId id) const {
  auto found = private_pools_.find(id);
  return found == private_pools_.end() ? nullptr : found->second.get();
}

void Policy::create_pool(PoolId id, bool no_split, bool use_on_oom, bool own_allocator) {
  GM_CHECK(!id.is_default());
  if (PrivatePool* known = find_private_pool(id)) {
    ++known->use_count;
    return;
  }
  auto pool = std::make_unique<PrivatePool>();
  pool->id = id;
  pool->no_split = no_split;
  pool->use_on_oom = use_on_oom;
  pool->own_allocator = own_allocator;
  pool->small.is_small = true;
  pool->small.owner = pool.get();
  pool->large.owner = pool.get();
  private_pools_.emplace(id, std::move(pool));
}

// The memory of a pool that nobody holds goes back with the next release of idle memory, not now.
Outcome Policy::release_pool(PoolId id) {
  PrivatePool* pool = find_private_pool(id);
  if (!pool || pool->use_count == 0) return Outcome::kPoolUnknown;
  --pool->use_count;
  return Outcome::kOk;
}

void Policy::set_pool_use_count(PoolId id, uint32_t use_count) {
  if (PrivatePool* pool = find_private_pool(id)) pool->use_count = use_count;
}

Outcome Policy::begin_thread_route(PoolId id, uint64_t thread) {
  PrivatePool* pool = find_private_pool(id);
  if (!pool) return Outcome::kPoolUnknown;
  routes_.push_back(Route{pool, false, thread});
  return Outcome::kOk;
}

Outcome Policy::begin_capture(PoolId id, uint64_t stream) {
  PrivatePool* pool = find_private_pool(id);
  if (!pool) return Outcome::kPoolUnknown;
  routes_.push_back(Route{pool, true, stream});
  return Outcome::kOk;
}

Outcome Policy::end_route(PoolId id) {
  for (size_t i = routes_.size(); i > 0; --i) {
    if (!(routes_[i - 1].pool->id == id)) continue;
    routes_.erase(routes_.begin() + static_cast<std::ptrdiff_t>(i - 1));
    return Outcome::kOk;
  }
  return Outcome::kPoolUnknown;
}

// An ordinary segment of the default pools turns out to be a private pool's.
void Policy::move_to_pool(const Segment* segment, PoolId id) {
  PrivatePool* owner = find_private_pool(id);
  GM_CHECK(owner && !segment->pool->owner && !segment->is_expandable());
  Segment* moved = segments_.at(segment->address).get();
  StreamBlocks* from = moved->lists;
  moved->pool = moved->pool->is_small ? &owner->small : &owner->large;
  moved->lists = &moved->pool->streams[moved->stream];
  ++owner->segment_count;
  for (Block* block = moved->first; block; block = block->next) {
    if (block->state != BlockState::kFree) continue;
    from->free.erase(block);
    moved->lists->free.insert(block);
  }
  PrivateReserve& reserve = private_reserves_[id];
  for (Counter* counter : {&reserve.all, moved->pool->is_small ? &reserve.small : &reserve.large})
    counter->add(moved->mapped_bytes);
}

BlockPool* Policy::pool_for(const Request& request, bool is_small) {
  PrivatePool* owner = nullptr;
  if (request.pool) {
    if (!request.pool->is_default() && !(owner = find_private_pool(*request.pool))) return nullptr;
  } else {
    for (size_t i = routes_.size(); i > 0 && !owner; --i) {
      const Route& route = routes_[i - 1];
      if (route.stream_or_thread == (route.is_capture ? request.stream : request.thread)) owner = route.pool;
    }
  }
  if (owner) return is_small ? &owner->small : &owner->large;
  return is_small ? &small_ : &large_;
}

bool Policy::is_capturing() const {
  if (behaviour_.routed_pool_blocks_release) return !routes_.empty();
  for (const Route& route : routes_)
    if (route.is_capture) return true;
  return false;
}

bool Policy::may_release_all() const {
  return !is_capturing();
}

void Policy::drop_empty_pools() {
  for (auto pool = private_pools_.begin(); pool != private_pools_.end();) {
    bool is_routed = false;
    for (const Route& route : routes_) is_routed |= route.pool == pool->second.get();
    if (pool->second->use_count == 0 && pool->second->segment_count == 0 && !is_routed)
      pool = private_pools_.erase(pool);
    else
      ++pool;
  }
}

void Policy::for_each_pool(const std::function<void(const BlockPool&)>& visitor) const {
  visitor(large_);
  visitor(small_);
  for (const auto& [id, pool] : private_pools_) {
    visitor(pool->small);
    visitor(pool->large);
  }
}

}  // namespace gpumem
