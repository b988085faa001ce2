/* What c10's headers mention of the CUDA runtime: opaque types and declarations, nothing that is ever called.
 *
 * Owns: just enough for the torch tracker to compile, always against this and never against a CUDA toolkit, because
 * torch's wheels bring no complete CUDA headers and so one path is tested. Must not know: values the tracker would use.
 * Functions whose arguments differ between versions take any; tried with the headers of torch 2.6, 2.11, 2.13 and 2.14.
 */
#ifndef GPUMEM_CUDA_STAND_IN_RUNTIME_API_H
#define GPUMEM_CUDA_STAND_IN_RUNTIME_API_H

#include <cstddef>

enum cudaError { cudaSuccess = 0, cudaErrorNotReady = 600 };
typedef cudaError cudaError_t;
enum cudaMemcpyKind { cudaMemcpyDefault = 4 };
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal = 0 };
enum cudaStreamCaptureStatus {
  cudaStreamCaptureStatusNone = 0,
  cudaStreamCaptureStatusActive = 1,
  cudaStreamCaptureStatusInvalidated = 2
};
enum cudaUserObjectFlags { cudaUserObjectNoDestructorSync = 1 };
enum cudaUserObjectRetainFlags { cudaGraphUserObjectMove = 1 };
typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;
typedef struct CUgraph_st* cudaGraph_t;
typedef struct CUuserObject_st* cudaUserObject_t;
typedef void (*cudaHostFn_t)(void*);
struct cudaDeviceProp;

extern "C" {
const char* cudaGetErrorString(cudaError_t);
cudaError_t cudaGetLastError();
cudaError_t cudaMemGetInfo(std::size_t*, std::size_t*);
cudaError_t cudaMemcpyAsync(void*, const void*, std::size_t, cudaMemcpyKind, cudaStream_t);
cudaError_t cudaDeviceGetStreamPriorityRange(int*, int*);
cudaError_t cudaStreamGetPriority(cudaStream_t, int*);
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus*);
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, ...);
cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t, ...);
cudaError_t cudaStreamQuery(cudaStream_t);
cudaError_t cudaStreamSynchronize(cudaStream_t);
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*);
cudaError_t cudaUserObjectCreate(cudaUserObject_t*, ...);
cudaError_t cudaUserObjectRelease(cudaUserObject_t, unsigned int);
cudaError_t cudaGraphRetainUserObject(cudaGraph_t, cudaUserObject_t, unsigned int, unsigned int);
}
#endif
