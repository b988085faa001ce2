/* Our own instrumented caching allocator: a plain C interface beside gpumem.h, with the same manners.
 *
 * Owns: the exported symbols of live allocators (gm_allocator_*) and of their place in PyTorch (gm_torch_*) and CuPy
 * (gm_cupy_*), their layouts. Must not know: Python, PyTorch's types.
 *
 * gm_allocator_* return a gm_status or a plain value, never throw, and may be called from any thread. GM_NO_MEMORY for
 * a change of the heap is an allocator's last word: GM_POLICY_DEVICE_FAILED for requests and figures from then on, and
 * what is freed is taken back without effect. So it is in a forked child with the allocators of its parent. gm_torch_*
 * are called by PyTorch, which turns a C++ exception into its own error: they may throw, but for what ends a tensor, a
 * graph or a pool.
 */
#ifndef GPUMEM_ALLOCATOR_H
#define GPUMEM_ALLOCATOR_H

#include "gpumem_policy.h"

#ifdef __cplusplus
extern "C" {
#endif

enum gm_allocator_status_code {
  GM_ALLOCATOR_NO_DEVICE = 200 /* no driver, no such GPU, or it refused; the error text says why */
};

enum gm_device_kind { GM_DEVICE_SIMULATED = 0, GM_DEVICE_CUDA = 1 };

typedef struct gm_allocator_options {
  const char* settings;  /* PYTORCH_CUDA_ALLOC_CONF's syntax; "" for the defaults */
  uint64_t memory_bytes; /* what the card has; 0: what the real one has (simulated: not 0) */
  uint64_t limit_bytes;  /* memory limit; GM_NO_LIMIT: per_process_memory_fraction of the settings, else none */
  uint32_t device_kind;  /* gm_device_kind */
  uint32_t device;       /* the program's ordinal; events carry it */
  uint32_t number;       /* 0 to 255: events carry it too, see GM_ALLOCATOR_NUMBER_SHIFT */
  uint32_t reserved;     /* 0 */
} gm_allocator_options;

typedef struct gm_allocator gm_allocator;

/* Hex SHA-256 of this header as the library was built. */
GM_API const char* gm_allocator_abi_hash(void);
/* The GPUs that the driver shows this process; starts no context. GM_ALLOCATOR_NO_DEVICE and the reason without any. */
GM_API gm_status gm_allocator_count_gpus(uint32_t* count, char* error, size_t capacity);
typedef struct gm_allocator_gpu {
  uint64_t memory_bytes;
  uint32_t has_expandable_segments; /* 1: memory can be mapped by pages */
  uint32_t reserved;                /* 0 */
  char name[128];
  char uuid[48]; /* in NVML's spelling */
} gm_allocator_gpu;
/* One of them; starts no context. GM_ALLOCATOR_NO_DEVICE and the reason where the driver does not say. */
GM_API gm_status gm_allocator_get_gpu(uint32_t device, gm_allocator_gpu* gpu, char* error, size_t capacity);
/* The GPU whose context is current on this thread; GM_ALLOCATOR_NO_DEVICE where none is. Starts nothing. */
GM_API gm_status gm_allocator_current_gpu(uint32_t* device);
/* Starts the device's context (cuda). On failure `error` says why. */
GM_API gm_status gm_allocator_create(const gm_allocator_options* options, gm_allocator** allocator, char* error,
                                     size_t capacity);
/* Gives all its memory back to the driver; addresses of live blocks die with it. */
GM_API void gm_allocator_destroy(gm_allocator* allocator);

/* Status GM_POLICY_*. Zero bytes: address 0, and nothing happens. */
GM_API gm_status gm_allocator_alloc(gm_allocator* allocator, uint64_t bytes, uint64_t stream, uint64_t* address);
GM_API gm_status gm_allocator_free(gm_allocator* allocator, uint64_t address);
/* The block at `address` is used on `stream` too: once freed it waits for what that stream has to do by then. */
GM_API gm_status gm_allocator_record_stream(gm_allocator* allocator, uint64_t address, uint64_t stream);
GM_API gm_status gm_allocator_empty_cache(gm_allocator* allocator);
/* The simulated device's streams: while held, recorded work is over only when waited for. */
GM_API gm_status gm_allocator_hold_streams(gm_allocator* allocator, uint32_t held);

typedef struct gm_counter {
  uint64_t current;
  uint64_t peak;    /* highest since the last reset of peaks */
  uint64_t added;   /* all that came since the last reset of accumulated counts */
  uint64_t removed; /* all that went */
} gm_counter;

/* In the order of PyTorch's statistics. */
typedef struct gm_pool_counters {
  gm_counter allocation;           /* blocks the program holds */
  gm_counter segment;              /* ordinary segments */
  gm_counter active;               /* blocks held or pending */
  gm_counter inactive_split;       /* free parts of ordinary segments that are in use */
  gm_counter allocated_bytes;      /* as above, in bytes … */
  gm_counter reserved_bytes;       /* segments and mapped ranges */
  gm_counter active_bytes;         /* … */
  gm_counter inactive_split_bytes; /* … */
  gm_counter requested_bytes;      /* what was asked for the active blocks */
} gm_pool_counters;

typedef struct gm_allocator_statistics {
  gm_pool_counters all;
  gm_pool_counters small_pool;
  gm_pool_counters large_pool;
  gm_counter oversize_allocations; /* blocks held of at least max_split_size */
  gm_counter oversize_segments;
  uint64_t num_alloc_retries;
  uint64_t num_ooms;
  uint64_t num_sync_all_streams; /* full releases */
  uint64_t num_device_alloc;
  uint64_t num_device_free;
  uint64_t num_oom_rejections; /* refused over the limit without asking the driver */
  uint64_t max_split_bytes;    /* GM_NO_LIMIT: no limit */
  uint64_t cache_hits;
  uint64_t splits;
  uint64_t releasable_bytes; /* what empty_cache would give back now */
  uint64_t gap_bytes;        /* the rest of what is idle */
} gm_allocator_statistics;

GM_API gm_status gm_allocator_get_statistics(gm_allocator* allocator, gm_allocator_statistics* statistics);

/* The reserved bytes of one private pool, which are counted on when it is gone. */
typedef struct gm_private_pool {
  uint64_t pool_first;
  uint64_t pool_second;
  gm_counter all;
  gm_counter small_pool;
  gm_counter large_pool;
} gm_private_pool;

/* Fills up to `capacity` rows, ascending by id; `count` is how many there are. */
GM_API gm_status gm_allocator_get_private_pools(gm_allocator* allocator, gm_private_pool* pools, uint64_t capacity,
                                                uint64_t* count);
GM_API gm_status gm_allocator_reset_peaks(gm_allocator* allocator);
GM_API gm_status gm_allocator_reset_accumulated(gm_allocator* allocator);

typedef struct gm_allocator_device {
  uint64_t memory_bytes; /* of the card */
  uint64_t limit_bytes;  /* GM_NO_LIMIT: none */
  uint64_t free_bytes;   /* what the driver says is free now; 0 where it does not say */
  char name[128];
  char uuid[48]; /* in NVML's spelling; "" for the simulated device */
} gm_allocator_device;
GM_API gm_status gm_allocator_get_device(gm_allocator* allocator, gm_allocator_device* device);

/* How the last call that returned GM_POLICY_DEVICE_FAILED failed, in the driver's words. */
GM_API gm_status gm_allocator_get_failure(gm_allocator* allocator, char* text, size_t capacity);
/* GM_POLICY_UNSOUND, and which equation in `error`, when the heap contradicts itself. Walks all of it. */
GM_API gm_status gm_allocator_check(gm_allocator* allocator, char* error, size_t capacity);
/* Calls `take` with the heap's rows, which live no longer than the call, and the position in the recording that the
 * heap stands at: events of this device before it are in the heap. `take` must not call the allocator. */
typedef void (*gm_allocator_heap_taker)(void* context, const gm_heap_segments* segments, const gm_heap_blocks* blocks,
                                        uint64_t position);
GM_API gm_status gm_allocator_take_heap(gm_allocator* allocator, gm_allocator_heap_taker take, void* context);

/* ---- PyTorch: functions for CUDAPluggableAllocator, one allocator per device ------------------------ */

/* Settings, gm_policy_behaviour bits and number of the allocators of devices that PyTorch comes to use; to be called
 * before CUDA starts. */
GM_API gm_status gm_torch_prepare(const char* settings, uint32_t behaviour, uint32_t number, char* error,
                                  size_t capacity);
/* The device's allocator; null while PyTorch has asked it for nothing. */
GM_API gm_allocator* gm_torch_allocator(uint32_t device);
/* The same, made where there is none yet, for another library of the program to share. GM_ALLOCATOR_NO_DEVICE with the
 * reason. */
GM_API gm_status gm_torch_start(uint32_t device, gm_allocator** allocator, char* error, size_t capacity);
/* Has PyTorch's requests on the allocator's device served by it; it must never be destroyed. GM_BAD_ARGUMENT where
 * PyTorch has asked for something there already. */
GM_API gm_status gm_torch_share(gm_allocator* allocator);
/* Makes cudnn.benchmark work: PyTorch asks the allocator in use for its largest free block, which a pluggable one
 * refuses to say. GM_UNSUPPORTED with a sentence where this PyTorch is laid out otherwise. */
GM_API gm_status gm_torch_answer_cache_info(char* reason, size_t capacity);
/* Makes copies between GPUs work with expandable segments. GM_UNSUPPORTED with a sentence where this PyTorch is laid
 * out otherwise. */
GM_API gm_status gm_torch_let_peers_in(char* reason, size_t capacity);
/* Has PyTorch's requests come without the table that its pluggable allocator keeps of every block; to be called before
 * any. GM_UNSUPPORTED with the reason where this PyTorch is laid out otherwise: they come the longer way. */
GM_API gm_status gm_torch_serve_directly(char* reason, size_t capacity);

/* ---- CuPy: two Python functions; all of these are called with the interpreter lock ------------------ */

/* The allocators that serve CuPy, by device. */
typedef struct gm_cupy gm_cupy;
/* `current_stream`: address of a C function intptr_t (void) that says the calling thread's stream, -1 with a Python
 * error set where it cannot. `on_failure`: Python function (bytes, device, status) -> address, called where a device is
 * not served (GM_ALLOCATOR_NO_DEVICE) or a request was refused. Never destroyed. GM_UNSUPPORTED: not this Python. */
GM_API gm_status gm_cupy_create(void* current_stream, void* on_failure, gm_cupy** cupy);
/* Python functions malloc(bytes, device) -> address and free(address, device): new references; null with a Python error
 * set. */
GM_API void* gm_cupy_malloc_function(gm_cupy* cupy);
GM_API void* gm_cupy_free_function(gm_cupy* cupy);
/* Serves a device from now on; the allocator lives as long as the process. */
GM_API gm_status gm_cupy_serve(gm_cupy* cupy, uint32_t device, gm_allocator* allocator);

#ifdef __cplusplus
}
#endif
#endif /* GPUMEM_ALLOCATOR_H */
