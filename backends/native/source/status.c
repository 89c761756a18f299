#include "status.h"

#include <stdarg.h>
#include <stdio.h>

enum { TEXT_BYTES = 1024 };

static _Thread_local char last_text[TEXT_BYTES];

cuts_status fail(cuts_status status, const char *format, ...) {
    va_list values;
    va_start(values, format);
    vsnprintf(last_text, TEXT_BYTES, format, values);
    va_end(values);
    return status;
}

const char *cuts_last_error(void) {
    return last_text;
}

uint32_t cuts_run_version(void) {
    return CUTS_RUN_VERSION;
}

const char *cuts_status_name(cuts_status status) {
    switch (status) {
        case CUTS_OK: return "CUTS_OK";
        case CUTS_ERROR_ARGUMENT: return "CUTS_ERROR_ARGUMENT";
        case CUTS_ERROR_FILE: return "CUTS_ERROR_FILE";
        case CUTS_ERROR_FORMAT: return "CUTS_ERROR_FORMAT";
        case CUTS_ERROR_VERSION: return "CUTS_ERROR_VERSION";
        case CUTS_ERROR_DIGEST: return "CUTS_ERROR_DIGEST";
        case CUTS_ERROR_ARCHITECTURE: return "CUTS_ERROR_ARCHITECTURE";
        case CUTS_ERROR_DRIVER: return "CUTS_ERROR_DRIVER";
        case CUTS_ERROR_MEMORY: return "CUTS_ERROR_MEMORY";
        case CUTS_ERROR_TENSOR: return "CUTS_ERROR_TENSOR";
    }
    return "unknown status";
}
