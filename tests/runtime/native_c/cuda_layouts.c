/* The structs and numbers of `cuda_calls.h` are those of the CUDA toolkit. */
#include <cuda.h>
#include <stddef.h>

#include "cuda_calls.h"

#define SAME(ours, theirs) _Static_assert((ours) == (theirs), #ours)
#define SAME_STRUCT(ours, theirs) SAME(sizeof(ours), sizeof(theirs))
#define SAME_PLACE(ours, field, theirs, name) SAME(offsetof(ours, field), offsetof(theirs, name))

SAME_STRUCT(cuda_kernel_params, CUDA_KERNEL_NODE_PARAMS_v1);
SAME_PLACE(cuda_kernel_params, grid, CUDA_KERNEL_NODE_PARAMS_v1, gridDimX);
SAME_PLACE(cuda_kernel_params, block, CUDA_KERNEL_NODE_PARAMS_v1, blockDimX);
SAME_PLACE(cuda_kernel_params, shared_bytes, CUDA_KERNEL_NODE_PARAMS_v1, sharedMemBytes);
SAME_PLACE(cuda_kernel_params, parameters, CUDA_KERNEL_NODE_PARAMS_v1, kernelParams);
SAME_PLACE(cuda_kernel_params, extra, CUDA_KERNEL_NODE_PARAMS_v1, extra);

SAME_STRUCT(cuda_copy_params, CUDA_MEMCPY3D);
SAME_PLACE(cuda_copy_params, source.memory_type, CUDA_MEMCPY3D, srcMemoryType);
SAME_PLACE(cuda_copy_params, source.device, CUDA_MEMCPY3D, srcDevice);
SAME_PLACE(cuda_copy_params, source.pitch, CUDA_MEMCPY3D, srcPitch);
SAME_PLACE(cuda_copy_params, source.height, CUDA_MEMCPY3D, srcHeight);
SAME_PLACE(cuda_copy_params, target, CUDA_MEMCPY3D, dstXInBytes);
SAME_PLACE(cuda_copy_params, target.memory_type, CUDA_MEMCPY3D, dstMemoryType);
SAME_PLACE(cuda_copy_params, target.device, CUDA_MEMCPY3D, dstDevice);
SAME_PLACE(cuda_copy_params, target.pitch, CUDA_MEMCPY3D, dstPitch);
SAME_PLACE(cuda_copy_params, width, CUDA_MEMCPY3D, WidthInBytes);
SAME_PLACE(cuda_copy_params, depth, CUDA_MEMCPY3D, Depth);

SAME_STRUCT(cuda_attribute, CUlaunchAttributeValue);
SAME_PLACE(cuda_attribute, nbytes, CUaccessPolicyWindow, num_bytes);
SAME_PLACE(cuda_attribute, hit_ratio, CUaccessPolicyWindow, hitRatio);
SAME_PLACE(cuda_attribute, miss, CUaccessPolicyWindow, missProp);

SAME_STRUCT(cuda_edge, CUgraphEdgeData);
SAME_PLACE(cuda_edge, type, CUgraphEdgeData, type);

SAME_STRUCT(cuda_address, CUdeviceptr);
SAME((int)CUDA_OUT_OF_MEMORY, (int)CUDA_ERROR_OUT_OF_MEMORY);
SAME((int)CUDA_MEMORY_DEVICE, (int)CU_MEMORYTYPE_DEVICE);
SAME((int)CUDA_CAPABILITY_MAJOR, (int)CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME((int)CUDA_CAPABILITY_MINOR, (int)CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME((int)CUDA_SHARED_BYTES_OPTIN, (int)CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
SAME((int)CUDA_WINDOW_BYTES, (int)CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE);
SAME((int)CUDA_FUNCTION_DYNAMIC_SHARED, (int)CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
SAME((int)CUDA_ATTRIBUTE_WINDOW, (int)CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW);
SAME((int)CUDA_PROPERTY_STREAMING, (int)CU_ACCESS_PROPERTY_STREAMING);
SAME((int)CUDA_PORT_PROGRAMMATIC, (int)CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC);
SAME((int)CUDA_EDGE_PROGRAMMATIC, (int)CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC);
SAME((int)CUDA_MAP_BYTES, (int)sizeof(CUtensorMap));

/* Numbers that a packed plan has of tensor maps (backends/native/launch_records.py). */
SAME((int)CU_TENSOR_MAP_DATA_TYPE_UINT8, 0);
SAME((int)CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 6);
SAME((int)CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 7);
SAME((int)CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 9);
SAME((int)CU_TENSOR_MAP_DATA_TYPE_TFLOAT32, 11);
SAME((int)CU_TENSOR_MAP_SWIZZLE_32B, 1);
SAME((int)CU_TENSOR_MAP_SWIZZLE_64B, 2);
SAME((int)CU_TENSOR_MAP_SWIZZLE_128B, 3);
SAME((int)CU_TENSOR_MAP_L2_PROMOTION_L2_128B, 2);

int main(void) {
    return 0;
}
