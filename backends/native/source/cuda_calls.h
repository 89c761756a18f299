/* The functions of the CUDA driver that this library calls, with their structs and the numbers of their enumerations.
 *
 * Names are those of the library: functions with a version take the structs of this version in any driver.
 */
#ifndef CUTS_CUDA_CALLS_H
#define CUTS_CUDA_CALLS_H

#include <stddef.h>
#include <stdint.h>

typedef int cuda_result;
typedef int cuda_device_id;
typedef uint64_t cuda_address;
typedef struct CUctx_st *cuda_context;
typedef struct CUmod_st *cuda_module;
typedef struct CUfunc_st *cuda_function;
typedef struct CUstream_st *cuda_stream;
typedef struct CUgraph_st *cuda_graph;
typedef struct CUgraphNode_st *cuda_node;
typedef struct CUgraphExec_st *cuda_executable;

enum {
    CUDA_OUT_OF_MEMORY = 2,
    CUDA_MEMORY_DEVICE = 2,
    CUDA_CAPABILITY_MAJOR = 75,
    CUDA_CAPABILITY_MINOR = 76,
    CUDA_SHARED_BYTES_OPTIN = 97,
    CUDA_WINDOW_BYTES = 109,
    CUDA_FUNCTION_DYNAMIC_SHARED = 8,
    CUDA_ATTRIBUTE_WINDOW = 1,
    CUDA_PROPERTY_STREAMING = 1,
    CUDA_PORT_PROGRAMMATIC = 1,
    CUDA_EDGE_PROGRAMMATIC = 1,
    CUDA_MAP_BYTES = 128,
    CUDA_CAPTURE_ACTIVE = 1,
    CUDA_SET_DEPENDENCIES = 1,
};

typedef struct cuda_kernel_params {
    cuda_function function;
    unsigned grid[3], block[3];
    unsigned shared_bytes;
    void **parameters;
    void **extra;
} cuda_kernel_params;

typedef struct cuda_copy_side {
    size_t x_bytes, y, z, lod;
    int memory_type;
    void *host;
    cuda_address device;
    void *array, *reserved;
    size_t pitch, height;
} cuda_copy_side;

typedef struct cuda_copy_params {
    cuda_copy_side source, target;
    size_t width, height, depth;
} cuda_copy_params;

typedef struct cuda_edge {
    unsigned char from_port, to_port, type, reserved[5];
} cuda_edge;

/* An attribute of a launch: here always the window of addresses that the L2 cache evicts first. */
typedef struct cuda_attribute {
    void *base;
    size_t nbytes;
    float hit_ratio;
    int hit, miss;
    char rest[32];
} cuda_attribute;

/* Each function with its parameters: a row is a member of `cuda_calls` and a name in the library. */
#define CUDA_FUNCTIONS(ROW)                                                                                     \
    ROW(cuInit, (unsigned))                                                                                     \
    ROW(cuGetErrorName, (cuda_result, const char **))                                                           \
    ROW(cuDeviceGet, (cuda_device_id *, int))                                                                   \
    ROW(cuDeviceGetName, (char *, int, cuda_device_id))                                                         \
    ROW(cuDeviceGetAttribute, (int *, int, cuda_device_id))                                                     \
    ROW(cuDevicePrimaryCtxRetain, (cuda_context *, cuda_device_id))                                             \
    ROW(cuDevicePrimaryCtxRelease_v2, (cuda_device_id))                                                         \
    ROW(cuCtxPushCurrent_v2, (cuda_context))                                                                    \
    ROW(cuCtxPopCurrent_v2, (cuda_context *))                                                                   \
    ROW(cuCtxSynchronize, (void))                                                                               \
    ROW(cuMemAlloc_v2, (cuda_address *, size_t))                                                                \
    ROW(cuMemFree_v2, (cuda_address))                                                                           \
    ROW(cuMemsetD8_v2, (cuda_address, unsigned char, size_t))                                                   \
    ROW(cuMemcpyHtoD_v2, (cuda_address, const void *, size_t))                                                  \
    ROW(cuMemcpyDtoH_v2, (void *, cuda_address, size_t))                                                        \
    ROW(cuMemcpy3DAsync_v2, (const cuda_copy_params *, cuda_stream))                                            \
    ROW(cuModuleLoadData, (cuda_module *, const void *))                                                        \
    ROW(cuModuleUnload, (cuda_module))                                                                          \
    ROW(cuModuleGetFunction, (cuda_function *, cuda_module, const char *))                                      \
    ROW(cuFuncSetAttribute, (cuda_function, int, int))                                                          \
    ROW(cuLaunchKernel, (cuda_function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,   \
                         cuda_stream, void **, void **))                                                        \
    ROW(cuStreamSynchronize, (cuda_stream))                                                                     \
    ROW(cuStreamIsCapturing, (cuda_stream, int *))                                                              \
    ROW(cuGraphCreate, (cuda_graph *, unsigned))                                                                \
    ROW(cuGraphDestroy, (cuda_graph))                                                                           \
    ROW(cuGraphAddKernelNode, (cuda_node *, cuda_graph, const cuda_node *, size_t, const cuda_kernel_params *)) \
    ROW(cuGraphAddMemcpyNode,                                                                                   \
        (cuda_node *, cuda_graph, const cuda_node *, size_t, const cuda_copy_params *, cuda_context))           \
    ROW(cuGraphAddEmptyNode, (cuda_node *, cuda_graph, const cuda_node *, size_t))                              \
    ROW(cuGraphAddChildGraphNode, (cuda_node *, cuda_graph, const cuda_node *, size_t, cuda_graph))             \
    ROW(cuGraphInstantiateWithFlags, (cuda_executable *, cuda_graph, unsigned long long))                       \
    ROW(cuGraphExecKernelNodeSetParams, (cuda_executable, cuda_node, const cuda_kernel_params *))               \
    ROW(cuGraphExecMemcpyNodeSetParams, (cuda_executable, cuda_node, const cuda_copy_params *, cuda_context))   \
    ROW(cuGraphExecChildGraphNodeSetParams, (cuda_executable, cuda_node, cuda_graph))                           \
    ROW(cuGraphLaunch, (cuda_executable, cuda_stream))                                                          \
    ROW(cuGraphExecDestroy, (cuda_executable))

/* Functions of newer drivers, null in older ones: tensor maps from 12.0, properties of edges and recordings of other
 * owners from 12.3. */
#define CUDA_OPTIONAL_FUNCTIONS(ROW)                                                                                  \
    ROW(cuTensorMapEncodeTiled, (void *, int, uint32_t, void *, const uint64_t *, const uint64_t *, const uint32_t *, \
                                 const uint32_t *, int, int, int, int))                                               \
    ROW(cuTensorMapEncodeIm2col, (void *, int, uint32_t, void *, const uint64_t *, const uint64_t *, const int *,     \
                                  const int *, uint32_t, uint32_t, const uint32_t *, int, int, int, int))             \
    ROW(cuGraphAddDependencies_v2, (cuda_graph, const cuda_node *, const cuda_node *, const cuda_edge *, size_t))     \
    ROW(cuGraphKernelNodeSetAttribute, (cuda_node, int, const cuda_attribute *))                                      \
    ROW(cuStreamGetCaptureInfo_v3,                                                                                    \
        (cuda_stream, int *, uint64_t *, cuda_graph *, const cuda_node **, const cuda_edge **, size_t *))             \
    ROW(cuStreamUpdateCaptureDependencies_v2, (cuda_stream, cuda_node *, const cuda_edge *, size_t, unsigned))

#define CUDA_MEMBER(name, parameters) cuda_result(*name) parameters;
#define CUDA_NAME(name, parameters) #name,

typedef struct cuda_calls {
    CUDA_FUNCTIONS(CUDA_MEMBER)
    CUDA_OPTIONAL_FUNCTIONS(CUDA_MEMBER)
} cuda_calls;

#endif
