/* The part of ONNX Runtime's C interface that is used here: no header of it is needed.
 *
 * ONNX Runtime gives a table of functions, to which each version adds at the end. The numbers are places in it.
 */
#ifndef CUTS_ONNXRUNTIME_CALLS_H
#define CUTS_ONNXRUNTIME_CALLS_H

#include <stddef.h>
#include <stdint.h>

enum { ORT_VERSION = 16, ORT_FAIL = 1, ORT_VARIADIC = 2 };

typedef struct ort_status ort_status;
typedef struct ort_value ort_value;
typedef struct ort_shape ort_shape;
typedef struct ort_info ort_info;
typedef struct ort_context ort_context;
typedef struct ort_domain ort_domain;
typedef struct ort_options ort_options;
typedef struct ort_op ort_op;
typedef void (*ort_function)(void);
typedef struct ort_api {
    ort_function functions[256];
} ort_api;

typedef struct ort_base {
    const ort_api *(*get_api)(uint32_t version);
    const char *(*get_version)(void);
} ort_base;

typedef ort_status *(*ort_create_status)(int code, const char *text);
typedef void (*ort_release)(void *object);
typedef ort_status *(*ort_create_domain)(const char *name, ort_domain **domain);
typedef ort_status *(*ort_domain_add)(ort_domain *domain, const ort_op *op);
typedef ort_status *(*ort_add_domain)(ort_options *options, ort_domain *domain);
typedef ort_status *(*ort_data)(ort_value *value, void **data);
typedef ort_status *(*ort_shape_of)(const ort_value *value, ort_shape **shape);
typedef ort_status *(*ort_element_type)(const ort_shape *shape, int *type);
typedef ort_status *(*ort_rank)(const ort_shape *shape, size_t *rank);
typedef ort_status *(*ort_extents)(const ort_shape *shape, int64_t *extents, size_t rank);
typedef ort_status *(*ort_int_attribute)(const ort_info *info, const char *name, int64_t *value);
typedef ort_status *(*ort_text_attribute)(const ort_info *info, const char *name, char *text, size_t *size);
typedef ort_status *(*ort_count)(const ort_context *context, size_t *count);
typedef ort_status *(*ort_input)(const ort_context *context, size_t number, const ort_value **value);
typedef ort_status *(*ort_output)(ort_context *context, size_t number, const int64_t *extents, size_t rank,
                                  ort_value **value);
typedef ort_status *(*ort_stream)(const ort_context *context, void **stream);

enum {
    ORT_CREATE_STATUS = 0,
    ORT_CREATE_DOMAIN = 26,
    ORT_DOMAIN_ADD = 27,
    ORT_ADD_DOMAIN = 28,
    ORT_DATA = 51,
    ORT_ELEMENT_TYPE = 60,
    ORT_RANK = 61,
    ORT_EXTENTS = 62,
    ORT_SHAPE_OF = 65,
    ORT_INT_ATTRIBUTE = 86,
    ORT_TEXT_ATTRIBUTE = 87,
    ORT_INPUT_COUNT = 88,
    ORT_OUTPUT_COUNT = 89,
    ORT_INPUT = 90,
    ORT_OUTPUT = 91,
    ORT_RELEASE_STATUS = 93,
    ORT_RELEASE_SHAPE = 99,
    ORT_STREAM = 193,
};

/* Calls a function of the table. */
#define ORT(api, type, number) ((type)(api)->functions[number])

/* An operation of a caller, by functions; those without a name here are null in this version. */
struct ort_op {
    uint32_t version;
    void *(*create)(const ort_op *op, const ort_api *api, const ort_info *info);
    const char *(*name)(const ort_op *op);
    const char *(*provider)(const ort_op *op);
    int (*input_type)(const ort_op *op, size_t number);
    size_t (*input_count)(const ort_op *op);
    int (*output_type)(const ort_op *op, size_t number);
    size_t (*output_count)(const ort_op *op);
    void (*compute)(void *kernel, ort_context *context);
    void (*destroy)(void *kernel);
    int (*input_kind)(const ort_op *op, size_t number);
    int (*output_kind)(const ort_op *op, size_t number);
    int (*input_memory)(const ort_op *op, size_t number);
    int (*min_inputs)(const ort_op *op);
    int (*inputs_have_one_type)(const ort_op *op);
    int (*min_outputs)(const ort_op *op);
    int (*outputs_have_one_type)(const ort_op *op);
    ort_status *(*try_create)(const ort_op *op, const ort_api *api, const ort_info *info, void **kernel);
    ort_status *(*try_compute)(void *kernel, ort_context *context);
    ort_status *(*infer_shapes)(const ort_op *op, void *context);
    int (*first_version)(const ort_op *op);
    int (*last_version)(const ort_op *op);
    void *later[4];
};

#endif
