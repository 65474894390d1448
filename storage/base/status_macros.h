// Macros that return early on an error, shaped like those of later abseil releases.
#ifndef CKPTD_STORAGE_BASE_STATUS_MACROS_H_
#define CKPTD_STORAGE_BASE_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define CKPTD_RETURN_IF_ERROR(expression)          \
  do {                                             \
    ::absl::Status ckptd_status_ = (expression);   \
    if (!ckptd_status_.ok()) return ckptd_status_; \
  } while (false)

#define CKPTD_MACRO_JOIN_INNER_(a, b) a##b
#define CKPTD_MACRO_JOIN_(a, b) CKPTD_MACRO_JOIN_INNER_(a, b)
#define CKPTD_ASSIGN_OR_RETURN_IMPL_(result, left, expression) \
  auto result = (expression);                                  \
  if (!result.ok()) return result.status();                    \
  left = *std::move(result)

#define CKPTD_ASSIGN_OR_RETURN(left, expression) \
  CKPTD_ASSIGN_OR_RETURN_IMPL_(CKPTD_MACRO_JOIN_(ckptd_result_, __LINE__), left, expression)

#endif  // CKPTD_STORAGE_BASE_STATUS_MACROS_H_
