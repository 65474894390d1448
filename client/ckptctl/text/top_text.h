// The screen of `ckptctl top`: who uses the memory and the disk now.
#ifndef CKPTD_CLIENT_CKPTCTL_TEXT_TOP_TEXT_H_
#define CKPTD_CLIENT_CKPTCTL_TEXT_TOP_TEXT_H_

#include <cstdint>
#include <string>

#include "ckptd/v1/messages.pb.h"

namespace ckptd::ctl {

struct TopSample {
  v1::Status status;
  v1::ListSessionsResponse sessions;
  int64_t unix_us = 0;
};

// Rates are those between the samples. Shows at most `rows` lines of each table, the largest first.
std::string RenderTop(const TopSample& before, const TopSample& now, int rows);

}  // namespace ckptd::ctl
#endif  // CKPTD_CLIENT_CKPTCTL_TEXT_TOP_TEXT_H_
