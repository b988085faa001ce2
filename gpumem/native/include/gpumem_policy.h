/* The allocator's policy and its replay: a plain C interface beside gpumem.h, with the same manners.
 *
 * Owns: the exported symbols of the simulated allocator (gm_policy_*) and of replay (gm_replay_*), their column
 * layouts. Must not know: Python, files, PyTorch types.
 *
 * Every gm_* function returns a gm_status or a plain value and never throws. A handle may be used from any thread;
 * gm_policy_* calls on one handle lock it, gm_replay_* handles belong to one thread at a time. A handle that gave
 * GM_NO_MEMORY gives nothing else from then on: what it holds was left half changed.
 */
#ifndef GPUMEM_POLICY_H
#define GPUMEM_POLICY_H

#include "gpumem.h"

#ifdef __cplusplus
extern "C" {
#endif

#define GM_POOL_UNKNOWN 65535 /* in a pool column: the source does not say */
#define GM_NO_LIMIT UINT64_MAX

enum gm_policy_status_code {
  GM_POLICY_OUT_OF_MEMORY = 100, /* after every attempt */
  GM_POLICY_TOO_LARGE = 101,     /* more than 1 EiB */
  GM_POLICY_NOT_LIVE = 102,      /* no live block begins at the address */
  GM_POLICY_POOL_UNKNOWN = 103,  /* no private pool has this id */
  GM_POLICY_DEVICE_FAILED = 104, /* the driver failed; the heap is as it was */
  GM_POLICY_BAD_SETTINGS = 105,  /* the settings string is wrong; the error text says where */
  GM_POLICY_UNSOUND = 106        /* a conservation equation does not hold; the error text says which */
};

enum gm_block_state { GM_BLOCK_FREE = 0, GM_BLOCK_ALLOCATED = 1, GM_BLOCK_PENDING = 2, GM_BLOCK_UNMAPPED = 3 };

/* Bits of `behaviour`: where a PyTorch version differs from 2.11. */
enum gm_policy_behaviour {
  GM_BEHAVIOUR_SEARCH_AFTER_RETRY_WAIT = 1, /* a block that came back while everything was released is found */
  GM_BEHAVIOUR_ROUTED_POOL_MAY_RELEASE = 2, /* use_mem_pool no longer forbids the full release */
  GM_BEHAVIOUR_LARGE_SEGMENT_SETTING = 4,   /* large_segment_size_mb changes segments */
  GM_BEHAVIOUR_OLDEST_BLOCK_FIRST = 8,      /* of equally large free blocks, whatever their addresses … */
  GM_BEHAVIOUR_OLDEST_SEGMENT_FIRST = 16    /* … or the one in the oldest segment */
};

/* Hex SHA-256 of this header as the library was built. */
GM_API const char* gm_policy_abi_hash(void);
/* 0 and an empty error when the options string parses, else GM_POLICY_BAD_SETTINGS and a sentence. */
GM_API gm_status gm_policy_check_settings(const char* settings, char* error, size_t capacity);

/* ---- heaps as columns ------------------------------------------------------------------------ */

/* Segments, ascending by address. Expandable ones: one row per contiguous mapped range, as PyTorch lists them. */
typedef struct gm_heap_segments {
  uint64_t count;
  uint64_t* address;
  uint64_t* bytes;
  uint64_t* stream;     /* raw handle */
  uint64_t* pool_first; /* private pool id, (0, 0) for the default pools */
  uint64_t* pool_second;
  uint8_t* is_small;
  uint8_t* is_expandable;
} gm_heap_segments;

/* Blocks, ascending by address; they tile the segments. */
typedef struct gm_heap_blocks {
  uint64_t count;
  uint64_t* address;
  uint64_t* bytes;
  uint64_t* requested_bytes; /* free blocks: what the last owner had asked */
  uint8_t* state;            /* gm_block_state */
} gm_heap_blocks;

/* ---- an allocator on the simulated device ----------------------------------------------------- */

typedef struct gm_policy gm_policy;

enum gm_address_order { GM_ADDRESS_DESCENDING = 0, GM_ADDRESS_ASCENDING = 1, GM_ADDRESS_SCATTERED = 2 };

typedef struct gm_policy_options {
  const char* settings;   /* PYTORCH_CUDA_ALLOC_CONF's syntax; "" for the defaults */
  uint64_t memory_bytes;  /* what the pretended card has */
  uint64_t limit_bytes;   /* memory limit; GM_NO_LIMIT: per_process_memory_fraction of the settings, else none */
  uint64_t seed;          /* of scattered addresses */
  uint32_t behaviour;     /* gm_policy_behaviour bits */
  uint32_t address_order; /* gm_address_order */
} gm_policy_options;

typedef struct gm_policy_allocation {
  uint64_t address;
  uint64_t block_bytes;
  uint64_t split_bytes;
  uint64_t flags; /* gm_flag bits */
} gm_policy_allocation;

typedef struct gm_policy_statistics {
  uint64_t allocated_bytes, allocated_bytes_peak;
  uint64_t active_bytes, active_bytes_peak;
  uint64_t requested_bytes, requested_bytes_peak;
  uint64_t reserved_bytes, reserved_bytes_peak;
  uint64_t inactive_split_bytes, inactive_split_bytes_peak;
  uint64_t allocated_blocks, active_blocks, segments;
  uint64_t cache_hits, splits, alloc_retries, ooms, oom_rejections, device_allocs, device_frees;
  uint64_t releasable_bytes, gap_bytes, small_free_bytes_max, large_free_bytes_max;
} gm_policy_statistics;

/* Called under the handle's lock for everything that happens, in order; must not call back into the handle. */
typedef void (*gm_policy_listener)(void* context, const gm_event* event);

GM_API gm_status gm_policy_create(const gm_policy_options* options, gm_policy_listener listener, void* context,
                                  gm_policy** policy, char* error, size_t capacity);
GM_API void gm_policy_destroy(gm_policy* policy);
GM_API gm_status gm_policy_alloc(gm_policy* policy, uint64_t bytes, uint64_t stream, uint64_t thread,
                                 gm_policy_allocation* allocation);
GM_API gm_status gm_policy_free(gm_policy* policy, uint64_t address);
GM_API gm_status gm_policy_record_stream(gm_policy* policy, uint64_t address, uint64_t stream);
GM_API gm_status gm_policy_empty_cache(gm_policy* policy);
GM_API gm_status gm_policy_set_limit(gm_policy* policy, uint64_t limit_bytes);
GM_API gm_status gm_policy_set_settings(gm_policy* policy, const char* settings, char* error, size_t capacity);
/* Private pools: created or held once more, released once, and routes to them for a thread or a captured stream. */
GM_API gm_status gm_policy_create_pool(gm_policy* policy, uint64_t first, uint64_t second, uint32_t no_split,
                                       uint32_t use_on_oom);
GM_API gm_status gm_policy_release_pool(gm_policy* policy, uint64_t first, uint64_t second);
GM_API gm_status gm_policy_begin_thread_route(gm_policy* policy, uint64_t first, uint64_t second, uint64_t thread);
GM_API gm_status gm_policy_begin_capture(gm_policy* policy, uint64_t first, uint64_t second, uint64_t stream);
GM_API gm_status gm_policy_end_route(gm_policy* policy, uint64_t first, uint64_t second);
/* The simulated streams: while held, recorded work is over only when finished or waited for. */
GM_API gm_status gm_policy_hold_streams(gm_policy* policy, uint32_t held);
GM_API gm_status gm_policy_finish_stream(gm_policy* policy, uint64_t stream);
/* The call_number-th device call from now on fails (out_of_memory 1: with no memory, 0: with a driver error). */
GM_API gm_status gm_policy_fail_call(gm_policy* policy, uint64_t call_number, uint32_t out_of_memory);
/* Device calls made so far, and the name of the one that failed last ("" none). */
GM_API gm_status gm_policy_device_calls(gm_policy* policy, uint64_t* call_count, char* failed, size_t capacity);
GM_API gm_status gm_policy_get_statistics(gm_policy* policy, gm_policy_statistics* statistics);
GM_API gm_status gm_policy_reset_peaks(gm_policy* policy);
/* GM_POLICY_UNSOUND, and which equation in `error`, when the heap contradicts itself. Walks all of it. */
GM_API gm_status gm_policy_check(gm_policy* policy, char* error, size_t capacity);
GM_API gm_status gm_policy_count_heap(gm_policy* policy, uint64_t* segments, uint64_t* blocks);
GM_API gm_status gm_policy_get_heap(gm_policy* policy, gm_heap_segments* segments, gm_heap_blocks* blocks);

/* ---- replay: any number of devices of one trace ------------------------------------------------ */

typedef struct gm_replay gm_replay;

typedef struct gm_replay_device {
  const char* settings;      /* the run's options string; "" for the defaults */
  uint64_t limit_bytes;      /* memory limit; GM_NO_LIMIT: there was none */
  uint64_t capacity_bytes;   /* the card's memory; 0 not known */
  uint32_t limit_known;      /* 0: limit_bytes is meaningless and the trace brackets it */
  uint32_t truncated;        /* 1: the history begins in mid-run */
  uint32_t behaviour;        /* gm_policy_behaviour bits */
  uint32_t check_each_event; /* 1: hold the heap to its equations after every event */
  uint32_t device;           /* the program's ordinal */
  uint32_t reserved;         /* 0 */
} gm_replay_device;

/* Consecutive events over all devices, each column `count` long. Kinds as in gm_record; free_requested and
 * free_completed that follow each other are one GM_FREE. Events of devices that were not added are passed over. */
typedef struct gm_replay_events {
  uint64_t count;
  const uint8_t* kind;
  const uint8_t* device;
  const uint16_t* stream; /* row of the stream handles */
  const uint16_t* pool;   /* row of the pools, 0 default, GM_POOL_UNKNOWN */
  const uint64_t* address;
  const uint64_t* requested_bytes;
} gm_replay_events;

enum gm_replay_assumption {
  GM_ASSUMED_EMPTY_CACHE = 1,       /* releases that no request explains were taken for empty_cache calls */
  GM_ASSUMED_POOLS = 2,             /* a request's pool was told by where it landed */
  GM_ASSUMED_LOST_POOLS = 4,        /* a pool that was gone before the end was assumed */
  GM_ASSUMED_GARBAGE = 8,           /* which segments were collected was read, not predicted */
  GM_ASSUMED_DRIVER_REFUSED = 16,   /* the driver refused memory below any limit */
  GM_ASSUMED_SETTINGS_CHANGED = 32, /* expandable segments were switched on or off during the run */
  GM_ASSUMED_SLACK = 64,            /* the slack of some old block never came to light */
  GM_ASSUMED_RELEASE = 128          /* without a known limit: an empty_cache, or a retry */
};

typedef struct gm_replay_result {
  uint64_t decisions;         /* recorded events that the policy reproduced */
  uint64_t events;            /* recorded events followed */
  uint64_t limit_bytes_min;   /* the memory limit was at least this … */
  uint64_t limit_bytes_max;   /* … and less than this; UINT64_MAX: nothing was refused */
  uint64_t empty_cache_count; /* inferred empty_cache calls */
  uint64_t allocated_bytes_end;
  uint64_t allocated_bytes_peak;
  uint64_t active_bytes_end;
  uint64_t active_bytes_peak;
  uint64_t requested_bytes_end;
  uint64_t requested_bytes_peak;
  uint64_t reserved_bytes_end;
  uint64_t reserved_bytes_peak;
  uint64_t cache_hits;
  uint64_t splits;
  uint64_t alloc_retries;
  uint64_t ooms;
  uint64_t device_allocs; /* segments and maps */
  uint64_t device_frees;  /* segments and unmaps */
  uint64_t releasable_bytes_end;
  uint64_t gap_bytes_end;
  uint64_t small_free_bytes_max; /* largest free block of the small pools at the end */
  uint64_t large_free_bytes_max;
  uint64_t difference_position; /* where policy and recording part; meaningless while exact */
  uint64_t expected_address;
  uint64_t expected_bytes;
  uint64_t expected_stream;
  uint64_t got_address;
  uint64_t got_bytes;
  uint64_t got_stream;
  uint32_t assumptions;  /* gm_replay_assumption bits */
  uint8_t exact;         /* 1: no difference so far */
  uint8_t expected_kind; /* gm_kind, 0: the recording has nothing there */
  uint8_t got_kind;      /* gm_kind, 0: the policy does nothing there */
  uint8_t reserved;      /* 0 */
  char reason[128];      /* what differs; "" while exact */
} gm_replay_result;

GM_API gm_status gm_replay_create(gm_replay** replay);
GM_API void gm_replay_destroy(gm_replay* replay);
/* Rows of the stream column and of the pool column; rows may be added as they come to be known. */
GM_API gm_status gm_replay_add_streams(gm_replay* replay, const uint64_t* handles, uint64_t count);
GM_API gm_status gm_replay_add_pools(gm_replay* replay, const uint64_t* first, const uint64_t* second, uint64_t count);
GM_API gm_status gm_replay_add_device(gm_replay* replay, const gm_replay_device* device, char* error, size_t capacity);
/* The heap before the first event, where it is known exactly. */
GM_API gm_status gm_replay_adopt(gm_replay* replay, uint32_t device, const gm_heap_segments* segments,
                                 const gm_heap_blocks* blocks);
/* The heap after the last event and all events: tells pools, and in a truncated history the heap before the first.
 * Only for a trace that lies in memory whole; before the first feed. */
GM_API gm_status gm_replay_adopt_from_end(gm_replay* replay, uint32_t device, const gm_heap_segments* segments,
                                          const gm_heap_blocks* blocks, const gm_replay_events* events, char* error,
                                          size_t capacity);
GM_API gm_status gm_replay_feed(gm_replay* replay, const gm_replay_events* events);
GM_API gm_status gm_replay_finish(gm_replay* replay);
/* Devices that still wait for more events at one before `position` are followed as if they had no more then. */
GM_API gm_status gm_replay_settle(gm_replay* replay, uint64_t position);
/* Rows whose details are settled and not yet taken; 0 for events after a difference. */
GM_API uint64_t gm_replay_ready(const gm_replay* replay);
GM_API gm_status gm_replay_take(gm_replay* replay, uint64_t count, uint64_t* block_bytes, uint64_t* split_bytes,
                                uint16_t* flags);
GM_API gm_status gm_replay_get_result(const gm_replay* replay, uint32_t device, gm_replay_result* result);
GM_API gm_status gm_replay_get_empty_caches(const gm_replay* replay, uint32_t device, uint64_t* positions,
                                            uint64_t capacity);
/* Counts of the heap's rows now, then the rows; the caller's arrays hold at least `count` of each. */
GM_API gm_status gm_replay_count_heap(const gm_replay* replay, uint32_t device, uint64_t* segments, uint64_t* blocks);
GM_API gm_status gm_replay_get_heap(const gm_replay* replay, uint32_t device, gm_heap_segments* segments,
                                    gm_heap_blocks* blocks);

/* ---- what if: the same requests under other settings, on a pretended card -------------------------- */

typedef struct gm_what_if gm_what_if;

typedef struct gm_what_if_options {
  const char* settings;   /* the options string to try */
  uint64_t memory_bytes;  /* the pretended card's memory */
  uint64_t limit_bytes;   /* memory limit; GM_NO_LIMIT: none, or what the settings' fraction says */
  uint64_t seed;          /* of scattered addresses */
  uint32_t behaviour;     /* gm_policy_behaviour bits */
  uint32_t address_order; /* gm_address_order; figures differ a little between them, so try several */
  uint32_t device;        /* whose events to take */
  uint32_t reserved;      /* 0 */
} gm_what_if_options;

typedef struct gm_what_if_result {
  uint64_t requests; /* allocs and frees served */
  uint64_t allocated_bytes_peak;
  uint64_t active_bytes_peak;
  uint64_t requested_bytes_peak;
  uint64_t reserved_bytes_peak;
  uint64_t reserved_bytes_end;
  uint64_t cache_hits;
  uint64_t splits;
  uint64_t alloc_retries;
  uint64_t device_allocs;      /* segments and maps */
  uint64_t device_frees;       /* segments and unmaps */
  uint64_t ooms;               /* requests refused */
  uint64_t first_oom_position; /* of the first of them; UINT64_MAX: none */
  uint64_t served_oom_count;   /* requests that ran out of memory when recorded, and would not now */
} gm_what_if_result;

GM_API gm_status gm_what_if_create(const gm_what_if_options* options, gm_what_if** what_if, char* error,
                                   size_t capacity);
GM_API void gm_what_if_destroy(gm_what_if* what_if);
GM_API gm_status gm_what_if_add_streams(gm_what_if* what_if, const uint64_t* handles, uint64_t count);
GM_API gm_status gm_what_if_add_pools(gm_what_if* what_if, const uint64_t* first, const uint64_t* second,
                                      uint64_t count);
/* empty_cache calls that the events do not hold, each before the event at this position; ascending. */
GM_API gm_status gm_what_if_add_empty_caches(gm_what_if* what_if, const uint64_t* positions, uint64_t count);
/* Blocks that were live before the recording began are fed as allocs first. */
GM_API gm_status gm_what_if_feed(gm_what_if* what_if, const gm_replay_events* events);
GM_API gm_status gm_what_if_get_result(const gm_what_if* what_if, gm_what_if_result* result);
/* Positions of the refused requests (`ooms` of the result), ascending; the caller's array holds `capacity`. */
GM_API gm_status gm_what_if_get_ooms(const gm_what_if* what_if, uint64_t* positions, uint64_t capacity);

#ifdef __cplusplus
}
#endif

#endif /* GPUMEM_POLICY_H */
