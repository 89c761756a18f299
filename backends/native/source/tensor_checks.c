#include "tensor_checks.h"

#include <stdio.h>
#include <string.h>

#include "driver.h"
#include "status.h"

const char *role_name(uint32_t role) {
    return role == CUTS_INPUT ? "input" : role == CUTS_OUTPUT ? "output" : "state";
}

/* Writes a shape as [1, 3, 224]. */
static const char *shape_text(const int64_t *shape, int32_t rank, char *text, size_t room) {
    size_t used = 0;
    text[used++] = '[';
    for (int32_t axis = 0; axis < rank && used + 24 < room; axis++)
        used += (size_t)snprintf(text + used, room - used, axis ? ", %lld" : "%lld", (long long)shape[axis]);
    snprintf(text + used, room - used, "]");
    return text;
}

static cuts_status check_shape(const plan_file *file, const tensor_record *tensor, const cuts_tensor *given) {
    const int64_t *shape = file->numbers + tensor->first_extent;
    char expected[256], found[256];
    int is_same = given->ndim == (int32_t)tensor->rank && (given->shape || !given->ndim);
    for (uint32_t axis = 0; is_same && axis < tensor->rank; axis++) is_same = given->shape[axis] == shape[axis];
    if (is_same) return CUTS_OK;
    return fail(CUTS_ERROR_TENSOR, "%s '%s': expected shape %s, found %s", role_name(tensor->role),
                text_of(file, tensor->name), shape_text(shape, (int32_t)tensor->rank, expected, sizeof expected),
                shape_text(given->shape, given->shape ? given->ndim : 0, found, sizeof found));
}

static cuts_status check_strides(const plan_file *file, const tensor_record *tensor, const cuts_tensor *given) {
    int64_t dense = 1;
    if (!given->strides || !tensor->nbytes) return CUTS_OK;
    for (int32_t axis = given->ndim - 1; axis >= 0; axis--) {
        if (given->shape[axis] != 1 && given->strides[axis] != dense)
            return fail(CUTS_ERROR_TENSOR, "%s '%s' has stride %lld at axis %d, expected %lld: pass a dense copy",
                        role_name(tensor->role), text_of(file, tensor->name), (long long)given->strides[axis], axis,
                        (long long)dense);
        dense *= given->shape[axis];
    }
    return CUTS_OK;
}

cuts_status check_tensor(const plan_file *file, const tensor_record *tensor, const cuts_tensor *given) {
    if (memcmp(&given->dtype, &tensor->dtype, sizeof given->dtype))
        return fail(CUTS_ERROR_TENSOR, "%s '%s': expected elements of DLPack's code %u with %u bits, found %u with %u",
                    role_name(tensor->role), text_of(file, tensor->name), tensor->dtype.code, tensor->dtype.bits,
                    given->dtype.code, given->dtype.bits);
    if (given->device.type == OPENCL_DEVICE && given->byte_offset)
        return fail(CUTS_ERROR_TENSOR, "%s '%s' begins within a cl_mem, expected at its beginning",
                    role_name(tensor->role), text_of(file, tensor->name));
    TRY(check_shape(file, tensor, given));
    return check_strides(file, tensor, given);
}
