// What the C interfaces of policy and replay share: texts, option bits, heap rows.
//
// Owns: translation between C structs and the policy's types. Must not know: what a call does.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "gpumem_policy.h"
#include "guarded.h"
#include "policy.h"

namespace gpumem {

// Cuts to capacity; always ends with 0.
void copy_text(const std::string& text, char* target, size_t capacity);

Behaviour behaviour_of(uint32_t bits);

gm_status status_of(Outcome outcome);

// The limit given; without one, what the settings' fraction of the card says.
uint64_t limit_of(uint64_t limit_bytes, uint64_t memory_bytes, const Settings& settings);

bool has_columns(const gm_replay_events* events);

// Fills rows of a policy's heap, reservations as their mapped ranges; null arrays: counts only.
void list_heap(const Policy& policy, gm_heap_segments* segments, gm_heap_blocks* blocks);

// A policy's heap with the columns it stands in.
struct HeapRows {
  gm_heap_segments segments = {};
  gm_heap_blocks blocks = {};
  std::vector<uint64_t> words;
  std::vector<uint8_t> bytes;
};
void fill_heap(const Policy& policy, HeapRows* rows);

}  // namespace gpumem
