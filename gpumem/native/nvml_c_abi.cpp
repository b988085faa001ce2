// The exported functions of NVML's sampling: checks arguments, then hands over.
#include "gpumem_nvml.h"
#include "guarded.h"
#include "nvml_sampling.h"

struct gm_nvml : gpumem::NvmlSampling {
  using NvmlSampling::NvmlSampling;
};

extern "C" {

const char* gm_nvml_abi_hash(void) {
  return GPUMEM_NVML_ABI_HASH;
}

gm_status gm_nvml_create(const gm_nvml_functions* functions, gm_nvml** nvml) {
  if (!functions || !nvml || !functions->read_memory || !functions->list_processes[0]) return GM_BAD_ARGUMENT;
  return gpumem::guarded([&]() -> gm_status {
    *nvml = new gm_nvml(*functions);
    return GM_OK;
  });
}

void gm_nvml_destroy(gm_nvml* nvml) {
  delete nvml;
}

gm_status gm_nvml_read(gm_nvml* nvml, uint64_t handle, gm_nvml_figures* figures) {
  if (!nvml || !figures) return GM_BAD_ARGUMENT;
  return gpumem::guarded([&]() -> gm_status {
    nvml->read(handle, figures);
    return GM_OK;
  });
}

uint64_t gm_nvml_forget(gm_nvml* nvml) {
  return nvml ? nvml->forget() : 0;
}

gm_status gm_nvml_follow(gm_nvml* nvml, uint64_t generation, const gm_nvml_device* devices, uint32_t count) {
  if (!nvml || (count && !devices)) return GM_BAD_ARGUMENT;
  return gpumem::guarded([&]() -> gm_status {
    nvml->follow(generation, devices, count);
    return GM_OK;
  });
}

int32_t gm_nvml_sample(gm_nvml* nvml, uint64_t age_ns_least) {
  if (!nvml) return GM_NVML_GIVEN_UP;
  return gpumem::guarded_value(GM_NVML_JUDGE, [&] { return nvml->sample(age_ns_least); });
}

int32_t gm_nvml_run(gm_nvml* nvml, uint32_t interval_ms, uint64_t gap_ns) {
  if (!nvml) return GM_NVML_GIVEN_UP;
  return nvml->run(interval_ms, gap_ns);
}

void gm_nvml_stop(gm_nvml* nvml) {
  if (nvml) nvml->stop();
}

void gm_nvml_give_up(gm_nvml* nvml) {
  if (!nvml) return;
  gpumem::guarded([&]() -> gm_status {
    nvml->give_up();
    return GM_OK;
  });
}

uint64_t gm_nvml_call_since_ns(const gm_nvml* nvml) {
  return nvml ? nvml->call_since_ns() : 0;
}

}  // extern "C"
