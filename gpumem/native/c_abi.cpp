// The exported functions: checks arguments, then hands over. Must not hold state or logic of its own.
#include <ctime>
#include <memory>

#include "gpumem.h"
#include "guarded.h"
#include "journal.h"
#include "journal_file.h"
#include "recorder.h"
#include "segment_signal.h"
#include "session.h"
#include "thread_state.h"
#include "walker.h"

namespace {

using gpumem::guarded;

gpumem::Journal* journal_of(gm_journal* journal) {
  return reinterpret_cast<gpumem::Journal*>(journal);
}

}  // namespace

extern "C" {

const char* gm_abi_hash(void) {
  return GPUMEM_ABI_HASH;
}

uint64_t gm_clock_ns(void) {
  return gpumem::clock_ns(CLOCK_MONOTONIC);
}

gm_status gm_recorder_start(const gm_recorder_options* options, int32_t* errno_value) {
  if (!options || !errno_value || !options->journal_path || !options->run_id) return GM_BAD_ARGUMENT;
  *errno_value = 0;
  return guarded([&] { return gpumem::recorder::start(*options, errno_value); });
}

gm_status gm_recorder_stop(const char* ended_by) {
  if (!ended_by) return GM_BAD_ARGUMENT;
  return guarded([&] { return gpumem::recorder::stop(ended_by); });
}

int32_t gm_recorder_is_active(void) {
  return gpumem::recorder::is_active();
}

void gm_recorder_set_enabled(int32_t enabled) {
  gpumem::recorder::set_enabled(enabled != 0);
}

gm_status gm_recorder_get_counts(gm_recorder_counts* counts) {
  return counts ? gpumem::recorder::get_counts(counts) : static_cast<gm_status>(GM_BAD_ARGUMENT);
}

gm_status gm_recorder_get_path(char* path, size_t capacity) {
  return path && capacity ? gpumem::recorder::get_path(path, capacity) : static_cast<gm_status>(GM_BAD_ARGUMENT);
}

gm_status gm_record_mark(uint8_t kind, const char* name, uint64_t step, uint64_t* position) {
  if ((kind != GM_MARK && kind != GM_STEP) || (kind == GM_MARK && !name)) return GM_BAD_ARGUMENT;
  return guarded([&] { return gpumem::recorder::record_mark(kind, name, step, position); });
}

gm_status gm_record_reading(const gm_reading* reading) {
  if (!reading) return GM_BAD_ARGUMENT;
  return guarded([&] { return gpumem::recorder::record_reading(*reading); });
}

gm_status gm_record_fact(const char* key, const char* json, size_t json_bytes) {
  if (!key || !json) return GM_BAD_ARGUMENT;
  return guarded([&] { return gpumem::keep_fact(key, json, json_bytes); });
}

gm_status gm_scope_push(const char* name, uint32_t* scope) {
  if (!name) return GM_BAD_ARGUMENT;
  return guarded([&] { return gpumem::push_scope(name, scope); });
}

gm_status gm_scope_pop(void) {
  return guarded([] { return gpumem::pop_scope(); });
}

uint64_t gm_wait_segment_event(uint64_t seen, uint32_t timeout_ms) {
  return gpumem::wait_segment_event(seen, timeout_ms);
}

void gm_wake_segment_waiters(void) {
  gpumem::wake_segment_waiters();
}

gm_status gm_walker_start(char* reason, size_t capacity) {
  if (!reason || !capacity) return GM_BAD_ARGUMENT;
  return guarded([&] { return gpumem::start_walker(reason, capacity); });
}

uint32_t gm_walker_intern_current(void) {
  return gpumem::guarded_value(uint32_t{0}, [] { return gpumem::recorder::intern_current_stack(); });
}

uint32_t gm_walker_walk(uint64_t* code_addresses, uint32_t* instruction_offsets, uint32_t capacity) {
  return gpumem::walk_current_stack(code_addresses, instruction_offsets, capacity);
}

void gm_walker_stop(void) {
  gpumem::stop_walker();
}

gm_status gm_journal_create(const char* path, const uint8_t* run_id, int32_t* errno_value, gm_journal** journal) {
  if (!path || !run_id || !errno_value || !journal) return GM_BAD_ARGUMENT;
  return guarded([&]() -> gm_status {
    auto created = std::make_unique<gpumem::Journal>();
    const gm_status status = created->create(path, run_id, errno_value);
    if (status == GM_OK) *journal = reinterpret_cast<gm_journal*>(created.release());
    return status;
  });
}

gm_status gm_journal_append(gm_journal* journal, const gm_record* record, uint64_t* position) {
  if (!journal || !record) return GM_BAD_ARGUMENT;
  return guarded([&] { return journal_of(journal)->append(*record, position); });
}

gm_status gm_journal_append_entry(gm_journal* journal, uint16_t kind, uint32_t id, const void* bytes, uint32_t length) {
  if (!journal || (!bytes && length)) return GM_BAD_ARGUMENT;
  const auto entry = static_cast<gpumem::EntryKind>(kind);
  return guarded([&] { return journal_of(journal)->append_entry(entry, id, bytes, length); });
}

gm_status gm_journal_close(gm_journal* journal, const char* ended_by) {
  if (!journal || !ended_by) return GM_BAD_ARGUMENT;
  return guarded([&]() -> gm_status {
    journal_of(journal)->close(ended_by);
    delete journal_of(journal);
    return GM_OK;
  });
}

}  // extern "C"
